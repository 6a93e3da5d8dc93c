"""How models write tool calls: one table for the grammar that forces them and the parser that reads them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """One way to write calls.

    opening, closing: markers around a block; closing "" = the block ends with its JSON. before, after: text between
    markers and JSON, as trained. is_list: a block holds a JSON list of calls, otherwise one object. arguments: key
    of the arguments. between: text between two blocks. is_bare: a call may come without its opening marker, as the
    first thing said. witnesses: what a chat template of this format writes, one is enough.
    """

    opening: str
    closing: str
    arguments: str = "arguments"
    before: str = ""
    after: str = ""
    between: str = ""
    is_list: bool = False
    is_bare: bool = False
    witnesses: tuple[str, ...] = ()


HERMES = ToolFormat("<tool_call>", "</tool_call>", before="\n", after="\n", between="\n", witnesses=("<tool_call>",))
MISTRAL = ToolFormat("[TOOL_CALLS]", "", is_list=True, witnesses=("[TOOL_CALLS]",))
PHI = ToolFormat("<|tool_call|>", "<|/tool_call|>", is_list=True, witnesses=("<|tool_call|>", "<|tool|>"))
LLAMA = ToolFormat(
    "<|python_tag|>",
    "",
    arguments="parameters",
    between="; ",
    is_bare=True,
    witnesses=("<|python_tag|>", '{"name": function name, "parameters":'),
)

# In the order in which templates are searched: a template may name another format's marker in passing.
TOOL_FORMATS: Mapping[str, ToolFormat] = MappingProxyType(
    {form.opening: form for form in (HERMES, MISTRAL, PHI, LLAMA)}
)


def find_format(template: str) -> ToolFormat | None:
    """The format a chat template teaches, None when it shows no tools or in an unknown way."""
    if "tools" not in template:
        return None
    return next((form for form in TOOL_FORMATS.values() if any(mark in template for mark in form.witnesses)), None)
