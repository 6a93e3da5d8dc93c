"""Greedy tokens of the worker's whole engine over a bundle, with nothing between a test and the scheduler."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.config import EngineConfig
from engine.request import Request, SamplingParams
from engine.worker.assembly import assemble


def served(folder: Path, prompts: Mapping[str, Sequence[int]], count: int, **settings: object) -> dict[str, list[int]]:
    """What the worker's engine makes of prompts that come at once; greedy."""
    asked = [Request(name, tuple(prompt), greedily(count)) for name, prompt in prompts.items()]
    return answered(folder, asked, **settings)


def greedily(count: int) -> SamplingParams:
    """So many tokens, the likeliest each."""
    return SamplingParams(count, temperature=0.0)


def answered(folder: Path, asked: Sequence[Request], **settings: object) -> dict[str, list[int]]:
    """The tokens of requests that come at once, by their ids."""
    made = assemble(EngineConfig(bundle=str(folder), **settings))  # type: ignore[arg-type]
    for request in asked:
        made.loop.add(request, (), 1, 0.0)
    found: dict[str, list[int]] = {request.id: [] for request in asked}
    while made.loop.has_work:
        report = made.loop.step()
        assert not report.failures, report.failures
        for event in report.events:
            found[event.id] += event.token_ids
    made.loop.close()
    made.runtime.close()
    return found
