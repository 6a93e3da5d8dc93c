"""Layers with windows have fewer columns of a fixed pool than layers that see everything."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from engine.bundle.check import check_contract
from engine.bundle.manifest import Manifest
from engine.bundle.specs import ForecastSpec
from engine.bundle.tensors import pool_window_slots
from engine.bundle.variant import shape_table
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.worker.assembly import assemble
from engine.worker.settings import plan_memory
from tests.engine.compile.check.test_pools import largest_error, pool_of, run

FAMILIES = ("ministral", "olmo3", "exaone4", "gemma3", "gemma2")
SHAPES: dict[str, Any] = {"rows": (8, 24), "context": (64, 264)}
COLUMNS = 128


@pytest.mark.parametrize("case", FAMILIES)
def test_logits_in_steps(
    case: str,
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Callable[..., tuple[Path, Manifest]],
    prompt: list[int],
) -> None:
    """Of texts longer than those columns, one after the other; windows are of 16."""
    model, folder, manifest = pool_of(case, make_oracle, build, **SHAPES)
    assert pool_window_slots(manifest) == COLUMNS
    assert largest_error(model, folder, (prompt * 100)[:240], (prompt * 100)[3:243]) < 1e-4


COUNT = 60


@pytest.mark.parametrize("settings", [{}, {"lookup_rows": 2, "kv_offload_mb": 0}], ids=["host cache", "guesses"])
def test_sequences_share_fewer_columns(
    settings: dict[str, Any],
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Callable[..., tuple[Path, Manifest]],
    prompt: list[int],
) -> None:
    """Answers side by side, in pools that are laid narrower and wider; other turns go on from what is left of them."""
    model, folder, _ = pool_of("gemma3", make_oracle, build, **SHAPES)
    prompts = [(prompt * 20)[start : start + 20 + 5 * start] for start in range(6)]
    answers = []
    for tokens in prompts:
        given = model.generate(torch.tensor([tokens]), max_new_tokens=COUNT, do_sample=False, eos_token_id=None)
        answers.append(given[0, len(tokens) :].tolist())
    served = assemble(EngineConfig(str(folder), threads=1, spin="off", reserve_tokens=0, **settings))
    assert served.loop.scheduler.rules.window_blocks == COLUMNS // 16  # type: ignore[attr-defined]
    assert run(served, {0: prompts[0]}, count=COUNT) == answers[:1]
    assert run(served, dict(enumerate(prompts)), count=COUNT) == answers
    turns = {index: prompts[index] + answers[index][:50] for index in range(3)}
    assert run(served, turns, count=10) == [answers[index][50:] for index in turns]
    assert served.loop.scheduler.counters.prefix_hits > 0
    assert run(served, {7: prompts[5]}, count=COUNT) == answers[5:]


def test_the_memory_plan_knows_and_such_a_model_does_not_guess_for_others(
    make_oracle: Callable[..., tuple[Any, Path]], build: Callable[..., tuple[Path, Manifest]]
) -> None:
    """Six of its seven layers have a window."""
    _, folder, manifest = pool_of("gemma3", make_oracle, build, **SHAPES)
    each, config = manifest.kv_bytes_per_token // 7, EngineConfig(str(folder))
    plan = plan_memory(manifest, shape_table(manifest, 24), config)
    assert (plan.slots, plan.window_slots, plan.caches) == (
        256,
        COLUMNS,
        256 * each + COLUMNS * 6 * each,
    )
    with pytest.raises(BundleError, match="keeps some windows of its layers, so nothing behind a guess is left"):
        assemble(replace(config, draft=str(folder)))
    graph = manifest.graphs[0]
    wider = [
        msgspec.structs.replace(item, shape=(*item.shape[:-1], COLUMNS + 16)) if item.name == "past_key_0_in" else item
        for item in graph.inputs
    ]
    broken = msgspec.structs.replace(graph, inputs=tuple(wider))
    with pytest.raises(BundleError, match="past_key_0_in is float32"):
        check_contract(msgspec.structs.replace(manifest, graphs=(broken, *manifest.graphs[1:])))
    forecast = ForecastSpec(first_id=300, branches=(2,), columns=16, file="prefix")
    with pytest.raises(BundleError, match="forecast: its KV slots are the first of all layers"):
        check_contract(msgspec.structs.replace(manifest, forecast=forecast))
