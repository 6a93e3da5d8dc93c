"""Tool calls as a grammar in Lark's notation, from how a model writes them. Syntax: llguidance's docs/syntax.md."""

import json

from engine.bundle.answer_format import JsonArguments, LiteralArguments, TaggedArguments
from engine.grammar.call_rules import CallRules, JsonOptions
from engine.grammar.literal_rules import LiteralRules
from engine.grammar.literals import ANYTHING, Literals, Unusable, escaped, loaded
from engine.grammar.spec import CalledTool, ToolCalls
from engine.grammar.tagged_rules import TaggedRules


class CallGrammar:
    """The rules of one request's calls."""

    def __init__(self, calls: ToolCalls, literals: Literals, options: JsonOptions) -> None:
        """options: what llguidance is told about JSON, by whether a schema is lenient."""
        self._calls, self._form = calls, calls.form
        self._literals = literals
        self._rules = CallRules(literals, options, calls.id_chars, calls.form.is_sorted)
        self._most = 1 if calls.form.between is None else calls.most

    def text(self) -> str:
        """The whole grammar; raises Unusable for parameters that cannot be enforced."""
        for number, tool in enumerate(self._calls.tools):
            self._tool(number, tool)
        self._rules.rule("call", " | ".join(f"call_{number}" for number in range(len(self._calls.tools))))
        if self._calls.is_forced or self._calls.otherwise is not None:
            return "\n".join([f"start: {self._blocks(self._from_prompt(self._opening))}", *self._rules.lines])
        return "\n".join([*self._with_text(), *self._rules.lines])

    @property
    def _opening(self) -> str:
        """What is in front of the first call's name."""
        return self._form.opening + self._form.begin

    def _from_prompt(self, opening: str) -> str:
        """An opening without what the prompt has written of it."""
        return opening.removeprefix(self._calls.prefilled)

    def _blocks(self, opening: str) -> str:
        """One block of calls, the first opened like that; several where each call is a block of its own."""
        form = self._form
        if self._most == 1:
            return f"{self._rules.literal(opening)} call {self._rules.literal(form.closing)}"
        more = f"({self._rules.literal((form.between or '') + form.begin)} call){_times(self._most)}"
        return f"{self._rules.literal(opening)} call {more} {self._rules.literal(form.closing)}"

    def _with_text(self) -> list[str]:
        """Start rules for text in which a call, once opened, is made well."""
        opening = self._opening.lstrip()
        mark = self._mark(opening)
        is_single = not (self._form.opening + self._form.closing).strip()
        count = "?" if not is_single else "*" if self._most == 0 else f"{{0,{self._most}}}"
        most, self._most = self._most, 1 if is_single else self._most
        behind = self._blocks(opening.removeprefix(mark))
        self._most = most
        around = " | ".join(
            f"({self._rules.literal(text)})" for text in self._calls.around if self._literals.has_control(text)
        )
        unopened = f"~/(?s:.*){escaped(mark)}(?s:.*)/"
        said = f"(SAID | {around})*" if around else "SAID"
        number = self._literals.control(mark)
        if opening.startswith("{"):  # the whole answer is a call, told by its first character
            starts = f"start: SAID | {self._blocks(opening)}"
            return [starts, rf"SAID: /([^{{\s](?s:.*))?/ & {unopened}"]
        if self._calls.prefilled:  # the prompt has begun a call or a text, which the next word tells
            texts = [self._from_prompt(text) for text in self._calls.around if text.startswith(self._calls.prefilled)]
            told = " | ".join(f"{self._rules.literal(text)} SAID" for text in texts) or "SAID"
            return [
                f"start: {self._blocks(self._from_prompt(self._opening))} | {told}",
                f"SAID: {ANYTHING} & {unopened}",
            ]
        if number is not None:
            start = f"start: {said} block{count}"
            return [start, f"block: <[{number}]> {behind} {said}", f"SAID: {ANYTHING} & {unopened}"]
        if self._literals.split(mark)[0][1] is not None:
            start = f"start: {said} block{count}"
            return [start, f"block: {self._rules.literal(mark)} {behind} {said}", f"SAID: {ANYTHING}"]
        lines = [f"start: (head block){count} {said}", f"head[lazy]: /(?s:.*){escaped(mark)}/"]
        if around:
            lines[0] = f"start: ({around})* (head block ({around})*){count} {said}"
        return [*lines, f"block: {behind}", f"SAID: {ANYTHING} & {unopened}"]

    def _mark(self, opening: str) -> str:
        """What tells that calls begin; a control token as a whole."""
        first, number = self._literals.split(opening)[0]
        return first if number is not None and first.startswith(self._calls.mark) else self._calls.mark

    def _tool(self, number: int, tool: CalledTool) -> None:
        schema = {} if tool.parameters is None else loaded(tool.parameters, f"the parameters of '{tool.name}'")
        if not isinstance(schema, dict) or schema.get("type", "object") != "object":
            raise Unusable(f"the parameters of '{tool.name}' must be a schema of type object")
        form = self._form
        is_json = isinstance(form.arguments, JsonArguments)
        name = json.dumps(tool.name)[1:-1] if is_json and form.begin.endswith('"') else tool.name
        frame = f"{json.dumps(name)} {self._rules.literal(form.named, name)}"
        match form.arguments:
            case JsonArguments():
                arguments = f"{self._rules.json_value(schema, schema, tool.is_lenient)} {self._rules.literal(form.end)}"
            case TaggedArguments():
                arguments = TaggedRules(self._rules, form, form.arguments, tool, schema, f"t{number}").rule()
            case LiteralArguments():
                arguments = LiteralRules(self._rules, form.arguments, tool, schema, f"t{number}").rule()
                arguments = f"{arguments} {self._rules.literal(form.end)}"
        self._rules.rule(f"call_{number}", f"{frame} {arguments}")


def _times(most: int) -> str:
    """How often more calls may follow the first."""
    return "*" if most == 0 else f"{{0,{most - 1}}}"
