"""What no rendering of a chat template shows of the way its model writes."""

import re
from collections.abc import Sequence
from itertools import takewhile

import msgspec

from engine.bundle.answer_format import TAG, AnswerFormat, CallFormat, JsonArguments, LiteralArguments, Markers

_ATOM = re.compile(rf"{TAG.pattern}|\w+|.", re.DOTALL)


def atoms(text: str) -> list[str]:
    return _ATOM.findall(text)


def is_tag(atom: str) -> bool:
    """Whether an atom looks like a tag or a control token."""
    return TAG.fullmatch(atom) is not None


def common_start(*texts: str) -> str:
    """The longest beginning that all have, in whole atoms."""
    return "".join(_shared([atoms(text) for text in texts]))


def common_end(*texts: str) -> str:
    """The longest end that all have, in whole atoms."""
    return "".join(reversed(_shared([atoms(text)[::-1] for text in texts])))


def first_tags(text: str, count: int = 1) -> str:
    """`text` up to its `count`-th tag, "" when it has fewer."""
    found = list(atoms(text))
    tags = [place for place, atom in enumerate(found) if is_tag(atom)]
    return "".join(found[: tags[count - 1] + 1]) if 0 < count <= len(tags) else ""


def _shared(lists: Sequence[Sequence[str]]) -> list[str]:
    return [row[0] for row in takewhile(lambda row: len(set(row)) == 1, zip(*lists, strict=False))]


# What closes a turn.
END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|end_of_turn|>",
    "<end_of_turn>",
    "<turn|>",
    "<|endofturn|>",
    "<|call|>",
    "<|calls|>",
    "<|return|>",
    "<|tool_response>",
)

# Reasoning that a template cuts out of an answer or only opens in the prompt.
REASONING = (Markers("<think>", "</think>"), Markers("[THINK]", "[/THINK]"))

# Apriel 1.5: the system message asks for these around the answer, and no turn renders them.
FINAL = Markers("[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]")
STEPS = Markers("Here are my reasoning steps:", FINAL.opening)

_JSON = JsonArguments()


def _listed(opening: str, closing: str) -> CallFormat:
    return CallFormat('{"name": "', '", "arguments": ', _JSON, "}", opening + "[", ", ", "]" + closing)


def _harmony(named: str) -> CallFormat:
    return CallFormat("<|channel|>commentary to=functions.", named, _JSON, "")


_LFM2 = CallFormat(
    "", "(", LiteralArguments("=", ", ", "'", is_raw=True), ")", "<|tool_call_start|>[", ", ", "]<|tool_call_end|>"
)

# Templates that show tools and render no calls, told by what else they write: what their models were trained to say.
UNRENDERED: tuple[tuple[str, CallFormat], ...] = (
    ("<|start_of_role|>available_tools", _listed("<|tool_call|>", "")),  # Granite 3
    ("<|tool|>", _listed("<|tool_call|>", "<|/tool_call|>")),  # Phi 4 mini
    ("List of tools: ", _LFM2),  # LFM2, LFM2.5
)

# Further ways to write calls, of models whose templates render one: what tells the template, its `begin`, the way.
FURTHER: tuple[tuple[str, str, CallFormat], ...] = (
    ("<|python_tag|>", '{"name": "', CallFormat('{"name": "', '", "parameters": ', _JSON, "}", "<|python_tag|>", "; ")),
    ("<|channel|>", " to=functions.", _harmony(" <|constrain|>json<|message|>")),
    ("<|channel|>", " to=functions.", _harmony("<|message|>")),
)
# What opens text besides, by what opens the text of an answer.
ASIDES = {"<|channel|>final<|message|>": ("<|channel|>commentary<|message|>",)}


def end_marks(source: str, answer: AnswerFormat | None) -> list[str]:
    """What closes a turn in a template, without what only closes a part of it."""
    parts = [answer.reasoning, answer.content] if answer is not None else []
    inner = {markers.closing for markers in parts if markers is not None} if answer and answer.restart else set()
    return [mark for mark in END_OF_TURN if mark in source and mark not in inner]


def told_reasoning(source: str) -> Markers | None:
    """Markers of which a template writes both."""
    return next((pair for pair in REASONING if pair.opening in source and pair.closing in source), None)


def known_answer(found: AnswerFormat, source: str) -> AnswerFormat:
    """The answer format with what the table says of this template."""
    if found.reasoning is None and FINAL.opening in source and FINAL.closing in source:
        found = msgspec.structs.replace(found, reasoning=STEPS, content=FINAL)
    calls = found.calls or next((form for mark, form in UNRENDERED if mark in source), None)
    if calls is None:
        return found
    also = tuple(form for mark, begin, form in FURTHER if mark in source and begin == calls.begin)
    asides = ASIDES.get(found.content.opening, ()) if found.content is not None else ()
    return msgspec.structs.replace(found, calls=calls, also=also, asides=asides)
