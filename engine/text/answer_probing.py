"""How a model writes its answers, found by rendering its chat template in a process of its own, within a time."""

import asyncio
import logging
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import msgspec

from engine.bundle.answer_format import AnswerFormat
from engine.bundle.manifest import Manifest, load_manifest
from engine.errors import BundleError, HexserveError
from engine.isolation.helper_pool import HelperLimits
from engine.text.answer_finding import find_answer
from engine.text.format_probes import Renderings, probe_requests
from engine.text.rendering import Rendered, read_template
from engine.text.template_pool import render_all

LONGEST_S = 20.0  # for all probes; they take less than a second
LIMITS = HelperLimits(budget_s=1.0, processes=1)


@lru_cache(maxsize=16)
def probed_answer(source: str | None, bos: str | None, eos: str | None) -> AnswerFormat | None:
    """How a model of this template writes, None without one. Blocks; not for an event loop's own thread.

    What cannot be rendered in time is not found; nothing is raised for it.
    """
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
