"""Which tools the model is shown: those that are loaded at once, and what the conversation adds and takes away."""

from collections.abc import Iterator

from server.http.errors import echo, refuse
from server.protocol.anthropic.blocks import ToolReference, ToolResultBlock
from server.protocol.anthropic.request import ConversationBody
from server.protocol.anthropic.tools import DeclaredTool, ToolAddition, ToolByName, ToolDefinition, ToolRemoval

Change = ToolReference | ToolAddition | ToolRemoval


def offered_tools(body: ConversationBody) -> list[DeclaredTool]:
    """The tools as the conversation ends; Refusal when two of `tools` have one name.

    Those that came later are last, so that the prompt up to them is the one before.
    """
    tools = body.tools or []
    declared = {tool.name: tool for tool in tools}
    for number, tool in enumerate(tools):
        if declared[tool.name] is not tool:
            raise refuse(f"Two tools are named {echo(tool.name)}.", f"tools[{number}].name", "invalid_value")
    offered = {tool.name: tool for tool in tools if not tool.defer_loading}
    for change in _changes(body):
        match change:
            case ToolRemoval(tool=tool_by_name):
                offered.pop(tool_by_name.name, None)
            case ToolAddition(tool=ToolDefinition(definition=defined)):
                declared[defined.name] = offered[defined.name] = defined
            case ToolAddition(tool=ToolByName(name=name)) | ToolReference(tool_name=name):
                if name in declared:
                    offered.setdefault(name, declared[name])
    return list(offered.values())


def _changes(body: ConversationBody) -> Iterator[Change]:
    """What adds and takes away tools, in order."""
    for turn in body.messages:
        for block in () if isinstance(turn.content, str) else turn.content:
            if isinstance(block, ToolAddition | ToolRemoval):
                yield block
            elif isinstance(block, ToolResultBlock) and isinstance(block.content, list):
                yield from (part for part in block.content if isinstance(part, ToolReference))
