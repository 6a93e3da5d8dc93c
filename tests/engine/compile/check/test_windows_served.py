"""Layers with windows, short convolutions and Mamba2, as served: the tokens of transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.bundle.manifest import Manifest
from engine.compile.arguments import Layout, Quant
from engine.config import EngineConfig
from engine.request import Request, SamplingParams
from engine.worker.assembly import Assembled, assemble
from tests.engine.compile.check.test_families import FALCON_H1, GRANITE_HYBRID, NEMOTRON_H_MOE

MakeOracle, Build = Callable[..., tuple[Any, Path]], Callable[..., tuple[Path, Manifest]]
WINDOW = 16
TOKENS = 160


def answer(
    loop: Assembled, name: str, prompt: list[int], most: Callable[[], None] = lambda: None, count: int = TOKENS
) -> list[int]:
    """Greedy tokens; `most` is called after every step."""
    params, tokens = SamplingParams(max_tokens=count, temperature=0.0), list[int]()
    loop.loop.add(Request(name, tuple(prompt), params), (), seed=1, now_s=0.0)
    while loop.loop.scheduler.has_work:
        for event in loop.loop.step().events:
            tokens += event.token_ids
        most()
        assert list(loop.loop.scheduler.violations()) == []
    return tokens


@pytest.mark.parametrize("kinds", [("conv", "full_attention"), ("full_attention", "conv")])
def test_short_convolutions(
    kinds: tuple[str, str],
    make_oracle: MakeOracle,
    build: Build,
    prompt: list[int],
) -> None:
    """LFM2: a prompt in pieces, then decodes; then one that goes on from a remembered state."""
    changes = {"num_hidden_layers": 4, "layer_types": [*kinds, *kinds], "hidden_size": 128, "head_dim": 32}
    model, source = make_oracle("Lfm2", block_multiple_of=16, pad_token_id=0, **changes)
    answers_as(model, served_from(build, source), prompt)


MAMBA2 = {"GraniteMoeHybrid": GRANITE_HYBRID, "FalconH1": FALCON_H1, "NemotronH": NEMOTRON_H_MOE}


@pytest.mark.parametrize("family", MAMBA2)
def test_mamba2(family: str, make_oracle: MakeOracle, build: Build, prompt: list[int]) -> None:
    """The same of Granite 4 and Nemotron-H, whose last layer has no keys and values, and of Falcon-H1."""
    model, source = make_oracle(family, **MAMBA2[family])
    answers_as(model, served_from(build, source), prompt)


@pytest.mark.parametrize("family", ["FalconH1", "NemotronH"])
def test_mamba2_of_sequences_that_gave_their_columns_back(
    family: str, make_oracle: MakeOracle, build: Build, prompt: list[int]
) -> None:
    model, source = make_oracle(family, **MAMBA2[family])
    served = served_from(build, source, kv_slots=192, reserve_tokens=0).loop
    prompts = {name: prompt[start:] + prompt[:start] for start, name in enumerate("abcd")}
    for name, tokens in prompts.items():
        params = SamplingParams(max_tokens=30, temperature=0.0)
        served.add(Request(name, tuple(tokens), params), (), seed=1, now_s=0.0)
    found: dict[str, list[int]] = {name: [] for name in prompts}
    while served.scheduler.has_work:
        for event in served.step().events:
            found[event.id] += event.token_ids
    expected = model.generate(
        torch.tensor([*prompts.values()]), max_new_tokens=30, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert [*found.values()] == expected[:, len(prompt) :].tolist()
    assert served.scheduler.counters.preemptions > 0


@pytest.mark.parametrize("family", ["GraniteMoeHybrid", "FalconH1"])
def test_a_last_layer_with_a_state_tells_what_is_not_finite(
    family: str, make_oracle: MakeOracle, build: Build, prompt: list[int]
) -> None:
    """In a step of no logits already, so that no state of it is remembered."""
    _, source = make_oracle(family, **MAMBA2[family])
    served = served_from(build, source)
    served.runtime._recurrent._weights[-1, 0] = np.nan  # type: ignore[attr-defined]
    served.loop.add(Request("a", tuple(prompt), SamplingParams(max_tokens=4)), (), seed=1, now_s=0.0)
    failures = served.loop.step().failures
    assert [failure.message for failure in failures] == ["the graph returned keys or values that are not finite"]


def served_from(build: Build, source: Path, **settings: Any) -> Assembled:
    folder, _ = build(source, quant=Quant.FP32, layout=Layout.SEGMENTS)
    return assemble(EngineConfig(str(folder), threads=1, max_rows=24, spin="off", **settings))


def answers_as(model: Any, served: Assembled, prompt: list[int]) -> None:
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)
    for name in ("a", "b"):
        assert answer(served, name, prompt) == expected[0, len(prompt) :].tolist()
    assert served.loop.scheduler.counters.prefix_hits == 32


def test_a_deterministic_worker_keeps_all_columns(
    make_oracle: Callable[..., tuple[Any, Path]], build: Callable[..., tuple[Path, Manifest]]
) -> None:
    _, source = make_oracle("Mistral", sliding_window=WINDOW, head_dim=16)
    folder, _ = build(source, quant=Quant.FP32, layout=Layout.SEGMENTS)
    served = assemble(EngineConfig(str(folder), threads=1, spin="off", deterministic=True))
    assert served.loop.scheduler.rules.window == 0  # type: ignore[attr-defined]
