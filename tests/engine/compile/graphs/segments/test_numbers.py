"""What segmented bundles compute: transformers' logits in float, the pool graphs' at any precision, in any steps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.bundle.manifest import Manifest
from engine.compile.arguments import KvType, Layout, Quant
from engine.compile.check.parity import bundle_logits
from tests.engine.compile.check.test_transformers_parity import CASES, oracle_logits
from tests.plain_bundle import ChainedSequence

Build = Callable[..., tuple[Path, Manifest]]
# Largest KL (nats) that the rounding may cost on a random network of width 64, where nothing averages out.
BOUNDS = {Quant.FP32: 1e-9, Quant.INT8: 4e-3, Quant.INT4: 0.15}


def error(measured: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(measured - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("case", CASES)
def test_transformers_logits(
    case: str, make_oracle: Callable[..., tuple[Any, Path]], build: Build, prompt: list[int]
) -> None:
    """Every family and rotary type, past the original window: in one step, and in steps of 7 and of one row."""
    family, changes = CASES[case]
    model, source = make_oracle(family, **changes)
    folder, manifest = build(source, quant=Quant.FP32, layout=Layout.SEGMENTS)
    expected = oracle_logits(model, prompt)
    for rows in (len(prompt), 7, 1):
        assert error(bundle_logits(folder, manifest, [prompt], rows), expected) < 1e-4


@pytest.mark.parametrize("quant", [Quant.FP32, Quant.INT8, Quant.INT4])
def test_the_pool_graphs_say_the_same(quant: Quant, tiny_checkpoint: Path, build: Build, prompt: list[int]) -> None:
    """One model in two layouts: the same stored weights, other sums."""
    pool = ChainedSequence.start(*build(tiny_checkpoint, quant=quant), None).extend(prompt)
    folder, manifest = build(tiny_checkpoint, quant=quant, layout=Layout.SEGMENTS, kv=KvType.FLOAT32)
    segments = bundle_logits(folder, manifest, [prompt], len(prompt))
    # Where activations are rounded to 8 bits, a last bit of a sum may become one of their steps.
    assert error(segments, pool) < {Quant.FP32: 1e-5, Quant.INT8: 0.03, Quant.INT4: 0.03}[quant]


def test_several_texts_do_not_meet(tiny_checkpoint: Path, build: Build, prompt: list[int]) -> None:
    folder, manifest = build(tiny_checkpoint, quant=Quant.FP32, layout=Layout.SEGMENTS)
    together = bundle_logits(folder, manifest, [prompt, prompt[5:15]], 8)
    assert np.array_equal(together[: len(prompt)], bundle_logits(folder, manifest, [prompt], 8))
    assert np.array_equal(together[len(prompt) :], bundle_logits(folder, manifest, [prompt[5:15]], 8))


@pytest.mark.parametrize(
    "options",
    [
        {"quant": Quant.FP32},
        {"quant": Quant.INT8},
        {"quant": Quant.INT4},
        {"quant": Quant.INT4, "block": 128},
        {"quant": Quant.INT4, "asymmetric": True},
        {"quant": Quant.INT4, "head": Quant.INT8},
        {"quant": Quant.INT4, "head": Quant.FP32},
        {"quant": Quant.INT8, "head": Quant.INT4},
        {"quant": Quant.INT4, "embedding_bits": 4},
        {"quant": Quant.INT4, "embedding_bits": 8},
    ],
)
def test_forms_of_layers_head_and_table(options: dict[str, Any], tiny_checkpoint: Path, build: Build) -> None:
    """The head may be stored otherwise than the layers; all stay near the reference."""
    _, manifest = build(tiny_checkpoint, layout=Layout.SEGMENTS, **options)
    bound = BOUNDS[Quant.INT4 if Quant.INT4 in options.values() else options["quant"]]
    bound += 1e-6 + 0.08 * (options.get("embedding_bits") == 4)
    assert 0 <= manifest.parity["kl"] < bound


@pytest.mark.parametrize("quant", [Quant.INT8, Quant.INT4])
def test_biases_and_blocks_that_are_not_full(
    quant: Quant, make_oracle: Callable[..., tuple[Any, Path]], build: Build
) -> None:
    _, source = make_oracle(
        "Llama", attention_bias=True, mlp_bias=True, hidden_size=72, intermediate_size=100, head_dim=16
    )
    _, manifest = build(source, quant=quant, layout=Layout.SEGMENTS)
    assert manifest.parity["kl"] < BOUNDS[quant]
