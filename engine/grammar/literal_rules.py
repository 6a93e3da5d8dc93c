"""The grammar of arguments that are keys and literals."""

import json
from collections.abc import Mapping
from typing import Any

from engine.bundle.answer_format import LiteralArguments
from engine.grammar.call_rules import ANY_KEY, CallRules, Parameters, check_enforceable, texts_of
from engine.grammar.literals import ANYTHING, escaped
from engine.grammar.parameter_types import resolved, types_of
from engine.grammar.spec import CalledTool

DEEPEST = 8


class LiteralRules:
    """Arguments as literals."""

    def __init__(
        self, grammar: CallRules, form: LiteralArguments, tool: CalledTool, schema: Mapping[str, Any], prefix: str
    ) -> None:
        self._grammar, self._form, self._tool, self._schema, self._prefix = grammar, form, tool, schema, prefix
        self._parameters = Parameters(schema, grammar.is_sorted)

    def rule(self) -> str:
        """All arguments, without what is around them."""
        grammar, between = self._grammar, self._grammar.literal(self._form.between)
        if not self._parameters.names:
            pair = f"{ANY_KEY} {grammar.literal(self._form.assign)} {self._any(0)}"
            return f"({pair} ({between} {pair})*)?"
        for start in range(len(self._parameters.names)):
            options = []
            for number in self._parameters.following(start):
                name = self._parameters.names[number]
                value = self._value(self._parameters.schemas[name], 0, self._form.is_raw)
                following = number + 1
                more = f"{between} {self._prefix}_{following}" if following < len(self._parameters.names) else ""
                if more and self._parameters.may_end(following):
                    more = f"({more})?"
                options.append(f"{json.dumps(name)} {grammar.literal(self._form.assign)} {value} {more}")
            grammar.rule(f"{self._prefix}_{start}", " | ".join(options))
        return f"{self._prefix}_0" + ("?" if self._parameters.may_end(0) else "")

    @property
    def _is_python(self) -> bool:
        return self._form.quote in ("'", '"')

    def _value(self, schema: Any, depth: int, is_raw: bool = False) -> str:
        known = resolved(schema, self._schema)
        types = types_of(known, self._schema)
        texts = texts_of(known)
        if texts is not None:
            quote = self._form.quote
            shown = [text if not self._is_python else repr(text)[1:-1] for text in texts]
            marks = self._grammar.literal(quote)
            return f"({' | '.join(f'{marks} {json.dumps(text)} {marks}' for text in shown)})"
        if types is None or depth > DEEPEST or not isinstance(known, Mapping):
            return self._any(depth)
        return f"({' | '.join(self._of_type(kind, known, depth, is_raw) for kind in sorted(types))})"

    def _of_type(self, kind: str, schema: Mapping[str, Any], depth: int, is_raw: bool) -> str:
        if kind == "string":
            check_enforceable(schema, self._tool, "")
            return self._string(is_raw)
        if kind == "boolean":
            return '("True" | "False")' if self._is_python else '("true" | "false")'
        if kind == "null":
            return '"None"' if self._is_python else '("null" | "None")'
        if kind == "array":
            item = self._value(schema.get("items", {}), depth + 1)
            return f'"[" ({item} ("," /[ ]?/ {item})*)? "]"'
        if kind == "object" and not self._is_python:
            return self._object(schema, depth)
        return self._grammar.json_value({**schema, "type": kind}, self._schema, self._tool.is_lenient)

    def _object(self, schema: Mapping[str, Any], depth: int) -> str:
        properties, required = schema.get("properties"), schema.get("required") or ()
        if not isinstance(properties, Mapping) or not properties:
            pair = f'{ANY_KEY} ":" {self._any(depth + 1)}'
            return f'"{{" ({pair} ("," {pair})*)? "}}"'
        parameters = Parameters({"properties": properties, "required": list(required)}, self._grammar.is_sorted)
        prefix = self._grammar.new_name("object")
        for start in range(len(parameters.names)):
            options = []
            for number in parameters.following(start):
                name, following = parameters.names[number], number + 1
                more = f'"," {prefix}_{following}' if following < len(parameters.names) else ""
                if more and parameters.may_end(following):
                    more = f"({more})?"
                value = self._value(properties[name], depth + 1)
                options.append(f"{json.dumps(name + ':')} {value} {more}")
            self._grammar.rule(f"{prefix}_{start}", " | ".join(options))
        return f'"{{" {prefix}_0{"?" if parameters.may_end(0) else ""} "}}"'

    def _any(self, depth: int) -> str:
        """Any value; of containers, some levels."""
        if depth > 2:
            return f"({self._string(is_raw=False)} | {self._scalar()})"
        item = self._any(depth + 1)
        pair = f'{ANY_KEY if not self._is_python else self._string(is_raw=False)} ":" /[ ]?/ {item}'
        listed = f'"[" ({item} ("," /[ ]?/ {item})*)? "]"'
        return (
            f'({self._string(is_raw=False)} | {self._scalar()} | {listed} | "{{" ({pair} ("," /[ ]?/ {pair})*)? "}}")'
        )

    def _scalar(self) -> str:
        words = '"True" | "False" | "None"' if self._is_python else '"true" | "false" | "null"'
        return f"/-?(0|[1-9][0-9]*)(\\.[0-9]+)?/ | {words}"

    def _string(self, is_raw: bool) -> str:
        if not self._is_python:
            quote = self._form.quote
            if self._grammar.literals.control(quote) is not None:
                return f"{self._grammar.literal(quote)} {ANYTHING} {self._grammar.literal(quote)}"
            rule = self._grammar.new_name("text")
            self._grammar.rule(f"{rule}[lazy]", f"/(?s:.*){escaped(quote)}/")
            return f"{self._grammar.literal(quote)} {rule}"
        if is_raw:  # a quote in it is followed by what cannot follow an argument
            return r"""(/'([^']|'\s*[^\s,)'])*'/ | /"([^"]|"\s*[^\s,)"])*"/)"""
        return r"""(/'([^'\\\n]|\\.)*'/ | /"([^"\\\n]|\\.)*"/)"""
