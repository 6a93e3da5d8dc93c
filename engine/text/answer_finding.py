"""From what a chat template renders of the probes to how the model writes its answers. Pure."""

import asyncio
import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import msgspec

from engine.bundle.answer_format import AnswerFormat, Markers
from engine.bundle.manifest import Manifest, load_manifest
from engine.errors import BundleError, HexserveError
from engine.isolation.helper_pool import HelperLimits
from engine.text.call_finding import TurnFrame, find_calls
from engine.text.format_probes import BLOCK, KEYS, NAMES, NEXT, SAID, THOUGHTS, WAYS, Renderings, Way, probe_requests
from engine.text.format_table import atoms, common_end, common_start, first_tags, is_tag, known_answer, told_reasoning
from engine.text.rendering import Rendered, read_template
from engine.text.template_pool import render_all

_SHOWN_LIST = re.compile(r"""['"](?:thinking|thoughts)['"]""")  # a list that became text as it is
PROMPTS = ("prompt", "prompt thinks", "prompt does not")


def find_answer(seen: Renderings, source: str) -> AnswerFormat:
    """How the model of this template (`source`) writes its answers."""
    reasoning, thoughts = _reasoning(seen)
    reasoning = reasoning or told_reasoning(source)
    way = next((way for way in WAYS if NAMES[0] in seen.text("one", way)), None)
    restart, turn = _frame(seen, reasoning, way)
    content = _content(seen, way, turn, restart)
    found = AnswerFormat(reasoning=reasoning, content=content, restart=restart, thoughts=thoughts)
    if NAMES[0] not in seen.whole("prompt"):
        return found  # the model is shown no tools
    calls = None if way is None else find_calls(seen, way, turn)
    if way is None or calls is None:
        known = known_answer(found, source)
        return msgspec.structs.replace(known, renders_none=way is None and known.calls is not None)
    begin = (calls.opening + calls.begin).strip()
    prefill = begin if begin and seen.text("prompt").endswith(begin) else ""  # that a prompt may have written of a call
    if prefill:
        turn = replace(turn, role=turn.role.removesuffix(prefill))
        found = msgspec.structs.replace(found, content=_content(seen, way, turn, restart))
    empty = found.content.opening + found.content.closing if found.content else ""
    # Whether the template puts arguments in order: the later key was given first.
    text = seen.text("reversed", way).rpartition(NAMES[0])[2]
    found = msgspec.structs.replace(
        found,
        calls=msgspec.structs.replace(
            calls, opening=calls.opening.removeprefix(empty), is_sorted=(0 <= text.find(KEYS[0]) < text.find(KEYS[1]))
        ),
        prefill=prefill,
        has_text_arguments=way.has_text_arguments,
        hides_calls=SAID in (both := seen.text("said call", way)) and NAMES[0] not in both,
        id_chars=0 if way.ids == WAYS[0].ids else len(way.ids[0]),
    )
    return known_answer(found, source)


def _reasoning(seen: Renderings) -> tuple[Markers | None, str]:
    fields = [*THOUGHTS.items(), ("", BLOCK)]
    for text in _texts_with_thoughts(seen):
        for field, mark in fields:
            before, found, after = text.partition(mark)
            if not found or _SHOWN_LIST.search(text):
                continue
            opening = _opening(seen, before)
            if opening and (closing := _closing(opening, after)):
                return Markers(opening, closing), field
    return None, ""


def _texts_with_thoughts(seen: Renderings) -> list[str]:
    texts = [seen.text(name) for name in ("thought", "thought thinks")]
    texts += [seen.text(name, way) for way in WAYS for name in ("thought call", "thought call thinks")]
    return texts + [seen.text(name) for name in ("blocks", "blocks thinks", "parts", "parts thinks")]


def _opening(seen: Renderings, before: str) -> str:
    """What stands in front of the reasoning and in no prompt, or, where every prompt opens it, the last tag of it."""
    others = [text for name in PROMPTS if (text := seen.text(name))]
    others += [text.partition(NAMES[0])[0] for way in WAYS if (text := seen.text("one", way))]
    starts = [start for other in others if (start := common_start(before, other))]
    own = before[len(min(starts, key=len, default="")) :]
    own = before[len(_not_into_tag(before[: len(before) - len(own)], own)) :]
    if own.strip():
        return own.strip()
    prompt = seen.text(PROMPTS[0])
    if prompt.startswith(before) and not any(map(is_tag, atoms(prompt[len(before) :]))):
        told = prompt[len(before) :].strip()  # a sentence that the prompt begins the reasoning with
        if told:
            return told
    tags = [atom for atom in atoms(before) if is_tag(atom)]
    return before[before.rfind(tags[-1]) :].strip() if tags else ""


def _closing(opening: str, after: str) -> str:
    """The first tag behind the reasoning; as many as open it where they are around the same word."""
    inner = [atom for atom in atoms(opening) if atom.isalnum()]
    count = sum(map(is_tag, atoms(opening)))
    several = first_tags(after.lstrip(), count)
    if count > 1 and inner and inner[0] in atoms(several):
        return several
    return first_tags(after.lstrip()).strip()


def _frame(seen: Renderings, reasoning: Markers | None, way: Way | None) -> tuple[str, TurnFrame]:
    before, _, after = seen.text("said").partition(SAID)
    calls = "" if way is None else seen.text("one", way).partition(NAMES[0])[0]
    role = _role(seen, [text for text in (before, calls) if text], reasoning)
    asked = seen.text("asked")
    end = common_end(asked, after)
    end = end if any(map(is_tag, atoms(end))) else ""
    restart = _restart(seen, role.removeprefix(asked), reasoning, way)
    further = first_tags(seen.text("said before").partition(SAID)[2].partition(NEXT)[0]).strip()
    return restart, TurnFrame(role, (end, further), after, reasoning)


def _content(seen: Renderings, way: Way | None, turn: TurnFrame, restart: str) -> Markers | None:
    before, found, after = seen.text("said").partition(SAID)
    opening = turn.stripped(before[len(turn.role) :]).strip()
    if not found or not opening:
        return None
    call, closing = "" if way is None else seen.text("said call", way), ""
    ahead, _, behind = call.partition(SAID)
    if call and ahead.rstrip().endswith(opening):
        closing = common_start(after, behind.partition(NAMES[0])[0]).removesuffix(restart).strip()
    return Markers(opening, closing or first_tags(after).strip())


def _role(seen: Renderings, heads: list[str], reasoning: Markers | None) -> str:
    """The head of a turn of the model, without the reasoning that it opens."""
    prompts = [text for name in PROMPTS if (text := seen.text(name))]
    starts = [start for text in prompts for head in heads if (start := common_start(text, head))]
    role = min(starts, key=len, default="")
    for head in heads:
        role = _not_into_tag(role, head[len(role) :])
    if reasoning is not None:
        place = role.rfind(reasoning.opening)
        return role if place < 0 else role[:place]
    if heads and prompts and any(map(is_tag, atoms(common_end(heads[0], prompts[0])))):
        return heads[0]  # the prompt says more in between, and ends as the turn begins
    return role


def _not_into_tag(before: str, after: str) -> str:
    """`before` without its last tag where a word follows that, which belongs to it."""
    kept = atoms(before)
    if kept and is_tag(kept[-1]) and atoms(after)[:1] and atoms(after)[0].isalnum():
        return "".join(kept[:-1])
    return before


def _restart(seen: Renderings, role: str, reasoning: Markers | None, way: Way | None) -> str:
    """The end of a turn's head that stands again behind the reasoning or between two calls, "" where none does."""
    marks, between = (*THOUGHTS.values(), BLOCK), list[str]()
    for text in _texts_with_thoughts(seen) if reasoning is not None else ():
        between += [text.partition(mark)[2] for mark in marks if mark in text][:1]
    if way is not None:
        between.append(seen.text("two", way).partition(NAMES[0])[2].partition(NAMES[1])[0])
    kept = atoms(role)
    for start in range(len(kept)):
        again = "".join(kept[start:])
        is_role = is_tag(kept[start]) and any(atom.isalnum() for atom in kept[start:])
        if is_role and any(again in text for text in between):
            return again
    return ""


LONGEST_S = 20.0  # for all probes; they take less than a second
LIMITS = HelperLimits(budget_s=1.0, processes=1)


@lru_cache(maxsize=16)
def probed_answer(source: str | None, bos: str | None, eos: str | None) -> AnswerFormat | None:
    """How a model of this template writes, None without one. Blocks; not for an event loop's own thread. What cannot be
    rendered in time is not found; nothing is raised for it."""
    if source is None:
        return None
    try:
        rendered = asyncio.run(_rendered(source, {"bos_token": bos or "", "eos_token": eos or ""}))
    except (HexserveError, TimeoutError) as error:
        logging.getLogger("hexserve").warning("how the model writes tool calls cannot be found: %s", error or "no time")
        rendered = []
    return find_answer(Renderings.of(rendered), source)


async def _rendered(source: str, variables: Mapping[str, str]) -> list[Rendered]:
    async with asyncio.timeout(LONGEST_S):
        return await render_all(source, probe_requests(variables), LIMITS)


def load_described(folder: Path) -> Manifest:
    """A bundle's manifest; that of an earlier version gets the answer format of its template. BundleError. Blocks."""
    manifest = load_manifest(folder)
    text = manifest.text
    if text.answer is not None or text.chat_template is None:
        return manifest
    try:
        source = read_template(folder / text.chat_template)
    except BundleError:  # whoever needs the template says so
        return manifest
    answer = probed_answer(source, text.bos_token, text.eos_token)
    return msgspec.structs.replace(manifest, text=msgspec.structs.replace(text, answer=answer))
