"""Families whose layers see windows or turn in two ways, in graphs over one pool, against transformers."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.bundle.manifest import Manifest
from engine.compile.arguments import Layout, Quant
from engine.config import EngineConfig
from engine.evaluation.models import open_bundle
from engine.request import Request, SamplingParams
from engine.worker.assembly import Assembled, assemble
from tests.engine.compile.check.test_families import CASES

FAMILIES = ("mistral-window", "ministral", "qwen2-window", "smollm3", "olmo3", "exaone4", "gemma3", "gemma2", "hunyuan")
SHAPES: dict[str, dict[str, Any]] = {"free": {}, "fixed": {"rows": (24,), "context": (136,)}}


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("case", FAMILIES)
def test_logits_in_steps(
    case: str,
    shapes: str,
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Callable[..., tuple[Path, Manifest]],
    prompt: list[int],
) -> None:
    """Of a text far longer than the windows of 16, in steps of which most are longer than a window."""
    model, folder, _ = pool_of(case, make_oracle, build, **SHAPES[shapes])
    text = (prompt * 100)[:100]
    assert largest_error(model, folder, text) < 1e-4


def test_a_graph_in_which_all_layers_have_windows(
    make_oracle: Callable[..., tuple[Any, Path]], build: Callable[..., tuple[Path, Manifest]], prompt: list[int]
) -> None:
    """Gemma 3 with few layers: none of them turns as the model's other layers would."""
    family, _, changes = CASES["gemma3"]
    model, source = make_oracle(family, **changes | {"num_hidden_layers": 2, "layer_types": ["sliding_attention"] * 2})
    folder, _ = build(source, quant=Quant.FP32, layout=Layout.POOL)
    assert largest_error(model, folder, (prompt * 100)[:100]) < 1e-4


def pool_of(
    case: str, make_oracle: Callable[..., tuple[Any, Path]], build: Callable[..., tuple[Path, Manifest]], **shapes: Any
) -> tuple[Any, Path, Manifest]:
    """transformers' model of a case of `test_families.py`, and its bundle with a pool of such shapes."""
    family, _, changes = CASES[case]
    model, source = make_oracle(family, **changes)
    return model, *build(source, quant=Quant.FP32, layout=Layout.POOL, **shapes)


def largest_error(model: Any, folder: Path, *texts: list[int]) -> float:
    """Over the largest logit of transformers: of texts that one opened bundle reads one after the other."""
    errors = []
    with ExitStack() as stack:
        opened = open_bundle("bundle", folder, None, stack)
        for text in texts:
            with torch.no_grad():
                expected = model(torch.tensor([text]), use_cache=False).logits[0].numpy()
            errors.append(float(np.abs(opened.logits(text) - expected).max() / np.abs(expected).max()))
    return max(errors)


SHORT, COUNT = 5, 170


@pytest.mark.parametrize("settings", [{}, {"lookup_rows": 2, "kv_offload_mb": 0}], ids=["host cache", "guesses"])
def test_sequences_outlive_their_pool(
    settings: dict[str, Any],
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Callable[..., tuple[Path, Manifest]],
    prompt: list[int],
) -> None:
    """Where every layer has a window: four answers side by side, each of 175 tokens, in a pool of 112 columns.

    Some give their columns back and go on later; a worker takes over what another one began; another turn goes on from
    the last window of the turn before.
    """
    model, folder, manifest = pool_of("mistral-window", make_oracle, build, **SHAPES["fixed"])
    assert manifest.max_context == 256
    prompts = [prompt[start : start + SHORT] for start in range(4)]
    expected = model.generate(torch.tensor(prompts), max_new_tokens=COUNT, do_sample=False, eos_token_id=None)
    answers: list[list[int]] = expected[:, SHORT:].tolist()
    served = assemble(EngineConfig(str(folder), threads=1, spin="off", reserve_tokens=0, **settings))
    assert served.ready.max_tokens_per_sequence == 256
    assert run(served, dict(enumerate(prompts))) == answers
    assert served.loop.scheduler.counters.preemptions > 0
    assert run(served, {8: prompts[2]}) == [answers[2]]
    before = served.loop.scheduler.counters.prefix_hits
    assert run(served, {9: prompts[2] + answers[2][:165]}) == [answers[2][165:]]
    assert served.loop.scheduler.counters.prefix_hits - before == 160
    other = assemble(EngineConfig(str(folder), threads=1, spin="off", **settings))
    assert run(other, {0: prompts[0]}, emitted=answers[0][:120]) == [answers[0][120:]]


def run(
    served: Assembled, prompts: dict[int, list[int]], emitted: list[int] | None = None, count: int = 0
) -> list[list[int]]:
    """Greedy tokens of prompts that come together, and no block held that is not seen. count: of each."""
    found: dict[str, list[int]] = {str(name): [] for name in prompts}
    begun = tuple(emitted or ())
    for name, tokens in prompts.items():
        params = SamplingParams(max_tokens=count or SHORT + COUNT - len(tokens), temperature=0.0)
        served.loop.add(Request(str(name), tuple(tokens), params), begun, seed=1, now_s=0.0)
    while served.loop.scheduler.has_work:
        report = served.loop.step()
        assert not report.failures and list(served.loop.scheduler.violations()) == []
        for event in report.events:
            found[event.id] += event.token_ids
    return [*found.values()]
