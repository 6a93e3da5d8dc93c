"""Markers that chat templates of the supported families write. One counts only if the template at hand writes it."""

# What closes a turn.
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|end_of_turn|>", "<end_of_turn>", "<|endofturn|>")

# What may open and close a part of an answer.
MARKERS = {"reasoning": (("<think>", "</think>"),), "tool_call": (("<tool_call>", "</tool_call>"),)}


def find_markers(template: str) -> dict[str, tuple[str, str]]:
    """The pairs of which the template writes both."""
    pairs = ((name, pair) for name, choices in MARKERS.items() for pair in choices)
    return {name: pair for name, pair in pairs if pair[0] in template and pair[1] in template}
