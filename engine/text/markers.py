"""Markers that chat templates of the supported families write. One counts only if the template at hand writes it."""

from engine.grammar.tool_formats import find_format

# What closes a turn.
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|end_of_turn|>", "<end_of_turn>", "<|endofturn|>")

# What may open and close the reasoning of an answer.
REASONING = (("<think>", "</think>"),)


def find_markers(template: str) -> dict[str, tuple[str, str]]:
    """`reasoning`: a pair of which the template writes both. `tool_call`: those of the format of calls it teaches."""
    found = {}
    reasoning = next((pair for pair in REASONING if pair[0] in template and pair[1] in template), None)
    if reasoning is not None:
        found["reasoning"] = reasoning
    calls = find_format(template)
    if calls is not None:
        found["tool_call"] = (calls.opening, calls.closing)
    return found
