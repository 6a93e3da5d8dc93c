"""How calls are written, read off renderings of the probes. Pure."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.bundle import answer_format
from engine.text.format_probes import AWKWARD, INNER, KEYS, KINDS, NAMES, VALUES, Renderings, Way
from engine.text.format_table import END_OF_TURN, atoms, common_end, common_start, is_tag

_LONE_NUMBER = re.compile(r"(?<![\w⟨])\d+(?!\w)")


@dataclass(frozen=True, slots=True)
class TurnFrame:
    """A turn of the model: `role` begins it, one of `ends` ends it. said_end: what follows an answer of text."""

    role: str
    ends: tuple[str, str]
    said_end: str
    reasoning: answer_format.Markers | None

    def stripped(self, head: str) -> str:
        """What is left of a turn's head without the reasoning that it has begun or left empty."""
        if self.reasoning is None:
            return head
        for marker in (self.reasoning.closing, self.reasoning.opening):
            _, found, behind = head.partition(marker)
            if found:
                return behind.lstrip()
        return head

    def without_end(self, tail: str) -> str:
        """What is left of the text behind a call when the turn's end is taken away."""
        shared = common_end(tail.rstrip(), self.ends[0].rstrip())
        if shared and is_tag(atoms(shared)[0]):
            return tail.rstrip().removesuffix(shared)
        for end in (self.ends[1], *END_OF_TURN):
            if end and tail.rstrip().endswith(end.rstrip()):
                return tail.rstrip().removesuffix(end.rstrip())
        return tail.rstrip().removesuffix(common_end(tail.rstrip(), self.said_end.rstrip()))


def find_calls(seen: Renderings, way: Way, turn: TurnFrame) -> answer_format.CallFormat | None:
    """The format of calls, None when what was rendered cannot be read as one."""
    one, two = seen.text("one", way), seen.text("two", way)
    has_two = NAMES[1] in two.partition(NAMES[0])[2]
    head, _, rest = (two if has_two else one).partition(NAMES[0])
    if not head.startswith(turn.role):
        return None
    arguments = _arguments(seen, way)
    split = _Split.of(rest, arguments, way, 0) if arguments is not None else None
    if arguments is None or split is None:
        return None
    named, behind = split.named, split.behind
    if not has_two:
        begin = turn.stripped(_holes(head[len(turn.role) :], way))
        return answer_format.CallFormat(begin, named, arguments, _holes(turn.without_end(behind), way))
    between, _, rest = behind.partition(NAMES[1])
    other = _Split.of(rest, arguments, way, 1)
    if other is None:
        return None
    own_head = _holes(turn.stripped(head[len(turn.role) :]), way)
    between, tail = _holes(between, way), _holes(turn.without_end(other.behind), way)
    return _joined(own_head, _holes(head, way), between, tail, named, arguments)


def _joined(
    own_head: str, head: str, between: str, tail: str, named: str, arguments: answer_format.Arguments
) -> answer_format.CallFormat | None:
    """Cut what stands between two calls into the end of one, what separates them and the begin of the other."""
    end = common_start(between, tail)
    left = between[len(end) :]
    begin = common_end(left, own_head)
    if not begin and (begin := common_end(left, head)):
        own_head = begin  # the prompt writes it
    opening, closing = own_head.removesuffix(begin), tail[len(end) :]
    turned = _turned(opening, end, begin) if begin else ""
    return answer_format.CallFormat(
        begin=turned + begin,
        named=named,
        arguments=arguments,
        end=end.removesuffix(turned),
        opening=opening.removesuffix(turned),
        between=left[: len(left) - len(begin)],
        closing=(turned + closing).rstrip(),
    )


def _turned(one: str, other: str, following: str) -> str:
    """The end that both have, if it has a tag and belongs to what follows both, which is no whole tag then."""
    shared = common_end(one, other)
    return shared if any(map(is_tag, atoms(shared))) and not is_tag(atoms(following)[0]) else ""


def _holes(text: str, way: Way) -> str:
    for identifier in way.ids:
        text = text.replace(identifier, answer_format.ID)
    for name in NAMES:
        text = text.replace(name, answer_format.NAME)
    return _LONE_NUMBER.sub(answer_format.NUMBER, text)


@dataclass(frozen=True, slots=True)
class _Split:
    """What follows a call's name: up to its arguments, and behind them."""

    named: str
    behind: str

    @classmethod
    def of(cls, rest: str, arguments: answer_format.Arguments, way: Way, number: int) -> "_Split | None":
        key, value = KEYS[number], VALUES[number]
        before, found, after = rest.partition(key)
        if not found:
            return None
        match arguments:
            case answer_format.JsonArguments():
                place = before.rfind("{")
                end = _json_end(rest, place)
                return None if end < 0 else cls(_holes(before[:place], way), rest[end:])
            case answer_format.TaggedArguments(before=opening, after=closing):
                behind, closing = after.partition(value)[2], closing.replace(answer_format.KEY, key)
                if not before.endswith(opening) or not behind.startswith(closing):
                    return None
                return cls(_holes(before.removesuffix(opening), way), behind[len(closing) :])
            case answer_format.LiteralArguments(quote=quote):
                return cls(_holes(before, way), after.partition(value)[2][len(quote) :])


def _json_end(text: str, place: int) -> int:
    try:
        return -1 if place < 0 else json.JSONDecoder().raw_decode(text, place)[1]
    except ValueError:
        return -1


def _arguments(seen: Renderings, way: Way) -> answer_format.Arguments | None:
    rest = seen.text("one", way).partition(NAMES[0])[2]
    before, found, after = rest.partition(KEYS[0])
    if not found:
        return None
    place = before.rfind("{")
    end = _json_end(rest, place)
    if end >= 0 and json.loads(rest[place:end]) == {KEYS[0]: VALUES[0]}:
        return answer_format.JsonArguments()
    assign, found, behind = after.partition(VALUES[0])
    if not found:
        return None
    quote = "".join(atoms(assign)[-1:])  # what stands both in front of a string and behind it
    if not ("'" in quote or '"' in quote) or not behind.startswith(quote):
        return _tags(seen, way)
    between = _between_arguments(seen, way).removeprefix(quote)
    is_raw = quote in ("'", '"') and AWKWARD in seen.text("awkward", way)
    return answer_format.LiteralArguments(assign.removesuffix(quote), between, quote, is_raw)


def _between_arguments(seen: Renderings, way: Way) -> str:
    return seen.text("arguments", way).partition(VALUES[0])[2].partition(KEYS[1])[0]


def _tags(seen: Renderings, way: Way) -> answer_format.Arguments | None:
    pair = seen.text("arguments", way).partition(NAMES[0])[2]
    if VALUES[1] not in pair:
        return None
    between = _between_arguments(seen, way).replace(KEYS[0], answer_format.KEY)
    tail = pair.partition(VALUES[1])[2].replace(KEYS[1], answer_format.KEY)
    after = common_start(between, tail)
    before = between[len(after) :]
    named = pair.partition(KEYS[0])[0].removesuffix(before)
    turned = _turned(named, after, before) if before else ""
    before, after = turned + before, after.removesuffix(turned)
    if not before.strip() or not after.strip():
        return None
    assign, words = {"string": pair.partition(KEYS[0])[2].partition(VALUES[0])[0]}, ["true", "false"]
    is_python, closing = False, after.replace(answer_format.KEY, KEYS[0])
    for kind, value in KINDS.items():
        rest = seen.text(kind, way).partition(KEYS[0])[2]
        written = _written(rest, value, closing)
        if not written:
            continue
        assign.setdefault("boolean" if kind == "false" else kind, rest[: rest.index(written + closing)])
        if isinstance(value, bool):
            words[0 if value else 1] = written
        is_python = is_python or written.startswith(("{'", "['"))
    wrap = _wrap(seen, way, assign["string"], closing)
    return answer_format.TaggedArguments(before, assign, after, wrap, _item(seen, way), (words[0], words[1]), is_python)


def _written(rest: str, value: object, after: str) -> str:
    forms: Sequence[str] = [json.dumps(value), json.dumps(value, separators=(",", ":")), str(value)]
    return next((form for form in forms if form + after in rest), "")


def _wrap(seen: Renderings, way: Way, assign: str, after: str) -> answer_format.Markers | None:
    before, found, behind = seen.text("awkward", way).partition(KEYS[0])[2].partition(AWKWARD)
    opening, closing = before.removeprefix(assign), behind.partition(after)[0]
    return answer_format.Markers(opening, closing) if found and opening and closing else None


def _item(seen: Renderings, way: Way) -> str:
    """The tag of a list's entries where values are nested tags, "" where they are JSON."""
    before, found, behind = seen.text("array", way).partition(KEYS[0])[2].partition(INNER)
    tag = re.search(r"<(\w+)>$", before)
    return tag[1] if found and tag is not None and f"</{tag[1]}>" in behind else ""
