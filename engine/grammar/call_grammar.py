"""Tool calls as a grammar in Lark's notation, from how a model writes them. Syntax: llguidance's docs/syntax.md."""

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from engine.bundle.answer_format import KEY, CallFormat, JsonArguments, LiteralArguments, TaggedArguments
from engine.grammar import call_rules
from engine.grammar.spec import CalledTool, ToolCalls, Types, resolved, types_of

DEEPEST = 8


class TaggedRules:
    def __init__(
        self,
        grammar: call_rules.CallRules,
        call: CallFormat,
        form: TaggedArguments,
        tool: CalledTool,
        schema: Mapping[str, Any],
        prefix: str,
    ) -> None:
        self._grammar, self._form, self._tool, self._schema = grammar, form, tool, schema
        self._end, self._prefix = call.end, prefix
        self._parameters = call_rules.Parameters(schema, grammar.is_sorted)

    def rule(self) -> str:
        """From behind the name to the end of the call."""
        first, grammar = f"{self._prefix}_0", self._grammar
        if not self._parameters.names:
            key = f"{call_rules.ANY_KEY} {grammar.literal(self._form.assign.get('string', ''))}"
            grammar.rule(first, f"{key} {self._text(KEY, first, may_end=True)}")
        for number in range(len(self._parameters.names)):
            self._next(number)
        options = [f"{grammar.literal(self._form.before)} {first}"]
        if self._parameters.may_end(0):  # some leave the line of the arguments empty
            options.append(f'"\\n"? {grammar.literal(self._end)}')
        return f"({' | '.join(options)})"

    def _next(self, start: int) -> None:
        options = []
        for number in self._parameters.following(start):
            name = self._parameters.names[number]
            for assign, schema, types in self._assigned(self._parameters.schemas[name]):
                value = self._value(name, schema, types, number + 1)
                options.append(f"{json.dumps(name)} {self._grammar.literal(assign)} {value}")
        self._grammar.rule(f"{self._prefix}_{start}", " | ".join(options))

    def _assigned(self, schema: Any) -> list[tuple[str, Any, Types | None]]:
        types, assign, known = types_of(schema, self._schema), self._form.assign, resolved(schema, self._schema)
        text = assign.get("string", "")
        by_literal: dict[str, set[str]] = {}
        for kind in sorted(types or ()):
            by_literal.setdefault(assign.get(kind, text), set()).add(kind)
        if types is None or len(by_literal) < 2 or call_rules.texts_of(known) is not None:
            return [(next(iter(by_literal), text), schema, types)]
        return [(literal, {**known, "type": sorted(kinds)}, frozenset(kinds)) for literal, kinds in by_literal.items()]

    def _value(self, name: str, schema: Any, types: Types | None, following: int) -> str:
        grammar, form = self._grammar, self._form
        rest = f"{self._prefix}_{following}" if following < len(self._parameters.names) else ""
        may_end = self._parameters.may_end(following)
        texts = call_rules.texts_of(resolved(schema, self._schema))
        after = grammar.literal(form.after, name)
        if texts is not None:
            value = f"({' | '.join(map(json.dumps, texts))})"
        elif types is None or "string" in types:
            call_rules.check_enforceable(schema, self._tool)
            return self._text(name, rest, may_end)
        elif form.item and types & {"object", "array"}:
            value, after = self._element(schema, form.after.replace(KEY, name), 0), ""
        elif types == frozenset(("boolean",)) and form.words != ("true", "false"):
            value = f"({' | '.join(map(json.dumps, (*form.words, 'true', 'false')))})"
        else:
            value = self._written(schema, types)
        options = [f"{grammar.literal(form.before)} {rest}"] if rest else []
        options += [grammar.literal(self._end)] if may_end else []
        return f"{value} {after} ({' | '.join(options)})"

    def _written(self, schema: Any, types: Types) -> str:
        """A value that is no text: JSON or, where the model writes Python, a literal."""
        values = [self._grammar.json_value(schema, self._schema, self._tool.is_lenient)]
        if "null" in types and self._form.words != ("true", "false"):
            values.append('"None"')
        if self._form.is_python and types & {"object", "array"}:
            form = LiteralArguments("", "", "'")
            literals = call_rules.LiteralRules(self._grammar, form, self._tool, self._schema, "")
            with contextlib.suppress(call_rules.Unusable):  # strict, and no text of Python's can be held to it
                values.append(literals.value(schema))
        return f"({' | '.join(values)})"

    def _text(self, name: str, rest: str, may_end: bool) -> str:
        """A string and what follows: it ends where another argument or the end of the call follows its closing tag."""
        after = self._form.after.replace(KEY, name) if name != KEY else self._form.after
        more, last = after + self._form.before, after + self._end
        one, other = (self._grammar.literals.split(text.lstrip()) for text in (more, last))
        first, second = one[0][0].rstrip(), other[0][0].rstrip()
        is_one_prefix, is_other_prefix = second.startswith(first), first.startswith(second)
        is_mixed = (len(one) == 1 and is_one_prefix) or (len(other) == 1 and is_other_prefix)
        if one[0][1] is not None or is_mixed:
            return self._closed_text(after, rest, may_end)
        options = [f"{self._up_to(more, last)} {rest}"] if rest else []
        options += [self._up_to(last, more)] if may_end else []
        return f"({' | '.join(options)})"

    def _up_to(self, literal: str, other: str) -> str:
        """Text that `literal` ends, without `other` in it. A control token ends it where it stands first."""
        own, others = (self._grammar.literals.split(text.lstrip()) for text in (literal, other))
        rule = self._grammar.new_name("text" if len(own) == 1 else "TEXT")
        begin = own[0][0].rstrip()
        spaces = literal[: len(literal) - len(literal.lstrip())]
        rest = literal.lstrip()[len(begin) :]
        pattern = f"/(?s:.*){call_rules.loose(spaces + begin)}" + ("/" if len(own) == 1 else r"\s*/")
        if len(others) == 1:
            pattern += f" & ~/(?s:.*){call_rules.loose(others[0][0].rstrip())}(?s:.*)/"
        self._grammar.rule(f"{rule}[lazy]" if len(own) == 1 else rule, pattern)
        return f"{rule} {self._grammar.literal(rest if len(own) == 1 else rest.lstrip())}"

    def _closed_text(self, after: str, rest: str, may_end: bool) -> str:
        """The same where control tokens follow: text ends at the first of them, or at the closing tag."""
        grammar, rule = self._grammar, self._grammar.new_name("text")
        beginning, number = grammar.literals.split(after.lstrip())[0]
        behind = after.lstrip()
        if number is None:
            beginning = beginning.rstrip()
            behind = behind[len(beginning) :]
            grammar.rule(
                f"{rule}[lazy]", f"/(?s:.*){call_rules.loose(after[: len(after) - len(after.lstrip())] + beginning)}/"
            )
        else:
            grammar.rule(rule, call_rules.ANYTHING)
        options = [f"{grammar.literal(behind + self._form.before)} {rest}"] if rest else []
        options += [grammar.literal(behind + self._end)] if may_end else []
        return f"{rule} ({' | '.join(options)})"

    def _element(self, schema: Any, closing: str, depth: int) -> str:
        grammar = self._grammar
        known = resolved(schema, self._schema)
        types = types_of(known, self._schema)
        known = known if isinstance(known, Mapping) else {}
        end = grammar.literal(closing)
        if depth < DEEPEST and types is not None and "array" in types:
            return f"({self._tag(self._form.item, known.get('items'), depth)})* {end}"
        if depth < DEEPEST and isinstance(known.get("properties"), Mapping):
            required = call_rules.required_of(known)
            tags = [
                self._tag(name, inner, depth) + ("" if name in required else "?")
                for name, inner in known["properties"].items()
            ]
            return f"{' '.join(tags)} {end}"
        if types is None or types & {"string", "object"}:
            text = self._element_text(closing)
            options = [text] if types is None or "string" in types else []
            options += [f"({self._any_tag()})* {end}"] if types is None or "object" in types else []
            return f"({' | '.join(options)})"
        return f"{grammar.json_value(schema, self._schema, self._tool.is_lenient)} {end}"

    def _element_text(self, closing: str) -> str:
        rule = self._grammar.new_name("element")
        if self._grammar.literals.split(closing)[0][1] is not None:
            self._grammar.rule(rule, call_rules.ANYTHING)
            return f"{rule} {self._grammar.literal(closing)}"
        self._grammar.rule(f"{rule}[lazy]", f"/(?s:.*){call_rules.escaped(closing)}/")
        return rule

    def _any_tag(self) -> str:
        """A tag of any name with text in it; that the names at its ends agree is not enforced."""
        before, _, behind = self._form.after.partition(KEY)
        name = f"{self._grammar.literal(self._form.before)} {call_rules.ANY_KEY}"
        inside = f"{name} {self._grammar.literal(self._form.assign.get('string', ''))} {self._element_text(before)}"
        return f"{inside} {call_rules.ANY_KEY} {self._grammar.literal(behind)}"

    def _tag(self, name: str, schema: Any, depth: int) -> str:
        before, assign = (self._grammar.literal(text) for text in (self._form.before, self._form.assign["string"]))
        closing = self._form.after.replace(KEY, name)
        return f"({before} {json.dumps(name)} {assign} {self._element(schema, closing, depth + 1)})"


class CallGrammar:
    def __init__(self, calls: ToolCalls, literals: call_rules.Literals, options: call_rules.JsonOptions) -> None:
        """options: what llguidance is told about JSON, by whether a schema is lenient."""
        self._calls, self._form = calls, calls.form
        self._literals = literals
        self._rules = call_rules.CallRules(literals, options, calls.id_chars, calls.form.is_sorted)
        self._most = 1 if calls.form.between is None else calls.most
        # A call that begins as other JSON does is cut as that is: llguidance takes the longest part that fits.
        is_bare = isinstance(self._form.arguments, JsonArguments) and self._opening.startswith("{")
        self._is_cut = is_bare and calls.otherwise is not None and not calls.prefilled

    def text(self) -> str:
        for number, tool in enumerate(self._calls.tools):
            self._tool(number, tool)
        self._rules.rule("call", " | ".join(f"call_{number}" for number in range(len(self._calls.tools))))
        if self._is_cut:
            self._rules.rule("SPACE", f"/{call_rules.WHITESPACE}/")
        if self._calls.is_forced or self._calls.otherwise is not None:
            start = self._blocks(self._from_prompt(self._opening), self._most)
            return "\n".join([f"start: {start}", *self._rules.lines])
        return "\n".join([*self._with_text(), *self._rules.lines])

    @property
    def _opening(self) -> str:
        return self._form.opening + self._form.begin

    def _from_prompt(self, opening: str) -> str:
        return opening.removeprefix(self._calls.prefilled)

    def _blocks(self, opening: str, most: int) -> str:
        """One block of calls, the first opened like that; several where each call is a block of its own."""
        form = self._form
        begin, opening = ("", "") if self._is_cut else (form.begin, opening)
        if most == 1:
            return f"{self._rules.literal(opening)} call {self._rules.literal(form.closing)}"
        times = "*" if most == 0 else f"{{0,{most - 1}}}"
        more = f"({self._rules.literal((form.between or '') + begin)} call){times}"
        return f"{self._rules.literal(opening)} call {more} {self._rules.literal(form.closing)}"

    def _with_text(self) -> list[str]:
        """Start rules for text in which a call, once opened, is made well."""
        opening = self._opening.lstrip()
        mark = self._mark(opening)
        is_single = not (self._form.opening + self._form.closing).strip()
        count = "?" if not is_single else "*" if self._most == 0 else f"{{0,{self._most}}}"
        behind = self._blocks(opening.removeprefix(mark), 1 if is_single else self._most)
        around = " | ".join(
            f"({self._rules.literal(text)})" for text in self._calls.around if self._literals.has_control(text)
        )
        unopened, anything = f"~/(?s:.*){call_rules.escaped(mark)}(?s:.*)/", f"SAID: {call_rules.ANYTHING}"
        said = f"(SAID | {around})*" if around else "SAID"
        number = self._literals.control(mark)
        if opening.startswith("{"):  # the whole answer is a call, told by its first character
            return [f"start: SAID | {self._blocks(opening, self._most)}", rf"SAID: /([^{{\s](?s:.*))?/ & {unopened}"]
        if self._calls.prefilled:  # the prompt has begun a call or a text, which the next word tells
            texts = [self._from_prompt(text) for text in self._calls.around if text.startswith(self._calls.prefilled)]
            told = " | ".join(f"{self._rules.literal(text)} SAID" for text in texts) or "SAID"
            block = self._blocks(self._from_prompt(self._opening), self._most)
            return [f"start: {block} | {told}", f"{anything} & {unopened}"]
        if self._literals.split(mark)[0][1] is not None:
            told = f"<[{number}]>" if number is not None else self._rules.literal(mark)
            end = f" & {unopened}" if number is not None else ""
            return [f"start: {said} block{count}", f"block: {told} {behind} {said}", f"{anything}{end}"]
        start = f"({around})* (head block ({around})*){count}" if around else f"(head block){count}"
        lines = [f"start: {start} {said}", f"head[lazy]: /(?s:.*){call_rules.escaped(mark)}/", f"block: {behind}"]
        return [*lines, f"{anything} & {unopened}"]

    def _mark(self, opening: str) -> str:
        """What tells that calls begin; a control token as a whole."""
        first, number = self._literals.split(opening)[0]
        return first if number is not None and first.startswith(self._calls.mark) else self._calls.mark

    def _tool(self, number: int, tool: CalledTool) -> None:
        what = f"the parameters of '{tool.name}'"
        schema = {} if tool.parameters is None else call_rules.loaded(tool.parameters, what)
        if not isinstance(schema, dict) or schema.get("type", "object") != "object":
            raise call_rules.Unusable(f"{what} must be a schema of type object")
        form = self._form
        is_json = isinstance(form.arguments, JsonArguments)
        name = json.dumps(tool.name)[1:-1] if is_json and form.begin.endswith('"') else tool.name
        frame, end = f"{json.dumps(name)} {self._rules.literal(form.named, name)}", self._rules.literal(form.end)
        if self._is_cut:
            frame = f"{self._rules.json_parts(form.begin + name + form.named)} SPACE?"
            end = f"SPACE? {self._rules.json_parts(form.end)}"
        match form.arguments:
            case JsonArguments():
                named = call_rules.closed(schema)
                arguments = f"{self._rules.json_value(named, named, tool.is_lenient)} {end}"
            case TaggedArguments():
                arguments = TaggedRules(self._rules, form, form.arguments, tool, schema, f"t{number}").rule()
            case LiteralArguments():
                arguments = call_rules.LiteralRules(self._rules, form.arguments, tool, schema, f"t{number}").rule()
                arguments = f"{arguments} {end}"
        self._rules.rule(f"call_{number}", f"{frame} {arguments}")
