"""Which bundles and settings an attention window goes with; and answers under one, behind the scheduler."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from engine.bundle.manifest import load_manifest
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.request import Request, SamplingParams
from engine.runtime.attention import AttentionWindow
from engine.worker.assembly import assemble
from engine.worker.settings import window_of
from tests.bundles import Bundles
from tests.hybrid import Hybrid, text_of

CONFIG = EngineConfig("", window=24, sinks=4)


def test_the_window_of_the_settings(bundles: Bundles) -> None:
    manifest = load_manifest(bundles("segments"))
    assert window_of(manifest, CONFIG) == AttentionWindow(24, 4)
    assert window_of(load_manifest(bundles("free")), EngineConfig("")) == AttentionWindow()


@pytest.mark.parametrize(
    ("layout", "changes", "message"),
    [
        ("free", {}, "window = 24: the bundle has no graph attention_masked"),
        ("segments", {"deterministic": True}, "window = 24: rows that see all KV slots"),
        ("segments", {"kv_file": "blocks"}, "window = 24: a kv_file does not say"),
    ],
)
def test_what_it_does_not_go_with(bundles: Bundles, layout: str, changes: dict[str, object], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        assemble(replace(CONFIG, bundle=str(bundles(layout)), **changes))  # type: ignore[arg-type]


def test_times_under_a_window_are_not_those_without(bundles: Bundles, tmp_path: Path) -> None:
    config = replace(CONFIG, bundle=str(bundles("segments")), cost_cache=str(tmp_path), max_rows=8)
    for changes in ({}, {"window": 0, "sinks": 0}, {}, {"window": 32}):
        assemble(replace(config, **changes)).runtime.close()  # type: ignore[arg-type]
    assert len(list(tmp_path.glob("costs-*.json"))) == 3


def test_a_bundle_made_before_there_were_masks(bundles: Bundles) -> None:
    manifest = load_manifest(bundles("segments"))
    older = msgspec.structs.replace(manifest, graphs=tuple(g for g in manifest.graphs if g.name != "attention_masked"))
    with pytest.raises(BundleError, match="compile it again as segments"):
        window_of(older, CONFIG)


def answers(bundle: str, window: int, sinks: int, together: bool, max_rows: int = 64) -> list[list[int]]:
    config = EngineConfig(bundle, threads=1, window=window, sinks=sinks, max_rows=max_rows)
    loop = assemble(config).loop
    outputs: dict[str, list[int]] = {f"s{index}": [] for index in range(3)}
    for index, name in enumerate(outputs):
        prompt = (*text_of(150, seed=9), *text_of(10 * index, seed=index))
        loop.add(Request(name, prompt, SamplingParams(max_tokens=12, temperature=0.0)), (), seed=1, now_s=0.0)
        while not together and loop.scheduler.has_work:
            take(loop.step, outputs)
    while loop.scheduler.has_work:
        take(loop.step, outputs)
    return list(outputs.values())


def take(step: Callable[[], object], outputs: dict[str, list[int]]) -> None:
    report = step()
    for event in report.events:  # type: ignore[attr-defined]
        outputs[event.id].extend(event.token_ids)


@pytest.mark.parametrize("kind", ["segments", "hybrid"])
def test_prefixes_are_shared_and_chunks_cut_anywhere(bundles: Bundles, hybrid: Hybrid, kind: str) -> None:
    bundle = str(bundles("segments") if kind == "segments" else hybrid.bundle)
    alone = answers(bundle, 24, 4, together=False)
    assert answers(bundle, 24, 4, together=True) == alone
    assert answers(bundle, 24, 4, together=True, max_rows=7) == alone
    assert answers(bundle, 0, 0, together=True) != alone
