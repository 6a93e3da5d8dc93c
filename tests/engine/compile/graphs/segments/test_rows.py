"""Gate and up as rows of 8 bits in whole graphs, beside transformers' numbers of the floats."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from engine.bundle.manifest import Manifest
from engine.bundle.variant import shape_table
from engine.compile.arguments import Layout, Quant
from engine.runtime.segmented import SegmentRuntime
from engine.runtime.sessions import cpu_provider
from tests.engine.compile.check.test_transformers_parity import oracle_logits
from tests.engine.runtime.test_onnx_lora import whole
from tests.engine.runtime.test_onnx_segments import run

Build = Callable[..., tuple[Path, Manifest]]
LAYERS = 2


@pytest.mark.parametrize(
    ("hidden", "amx", "products"),
    [(128, False, 2 * LAYERS), (128, True, 3 * LAYERS), (64, False, 0), (64, True, LAYERS)],
)
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("family", ["Llama", "Phi3"])
def test_logits_of_rows_are_near_those_of_the_floats(
    family: str,
    lora: bool,
    hidden: int,
    amx: bool,
    products: int,
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Build,
    prompt: list[int],
) -> None:
    """Also where a checkpoint stacks both matrices, and with room for adapters, which want them as one product.
    Inputs that 128 does not divide have blocks. With AMX `down` is rows, too."""
    sizes = {"hidden_size": hidden, "intermediate_size": 256, "num_hidden_layers": LAYERS, "head_dim": 16}
    model, source = make_oracle(family, **sizes)
    folder, manifest = build(source, quant=Quant.INT8, layout=Layout.SEGMENTS, lora=lora, amx=amx)
    graphs = [onnx.load(path, load_external_data=False).graph for path in sorted(folder.glob("linear_*.onnx"))]
    found = [node.op_type for graph in graphs for node in graph.node]
    assert found.count("MatMulIntegerToFloat") == products
    runtime = SegmentRuntime(folder, manifest, shape_table(manifest, 64), cpu_provider(1))
    measured, expected = run(runtime, whole("", tuple(prompt), tuple(range(6)))), oracle_logits(model, prompt)
    assert np.linalg.norm(measured - expected) / np.linalg.norm(expected) < 0.04
