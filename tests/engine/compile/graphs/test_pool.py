"""How many columns layers with a window have in a pool."""

from pathlib import Path

import msgspec
import pytest

from engine.bundle.model_spec import LayerAttention, ModelSpec
from engine.bundle.variant import StepShape
from engine.compile.graphs.pool import window_past
from tests.engine.tiny_bundle import write_bundle


@pytest.fixture
def model(tmp_path: Path) -> ModelSpec:
    return write_bundle(tmp_path).model


@pytest.mark.parametrize(
    ("windows", "shapes", "columns"),
    [
        ((512, 0), ((1, 4095), (128, 3968)), 2048),  # half, in steps of 64
        ((512, 0), ((1, 1023), (128, 896)), 704),  # a window, a step and the ends of both
        ((512, 0), ((1, 700),), 576),
        ((512, 0), ((128, 640),), 0),  # no fewer than others
        ((512, 512), ((1, 4095),), 0),  # whole blocks are free behind these
        ((0, 0), ((1, 4095),), 0),
        ((16, 0), ((64, 0),), 0),  # without a past
        ((16, 0), (), 0),
    ],
)
def test_half_of_the_others_or_what_one_sequence_takes(
    model: ModelSpec, windows: tuple[int, ...], shapes: tuple[tuple[int, int], ...], columns: int
) -> None:
    layers = tuple(map(LayerAttention, windows))
    spec = msgspec.structs.replace(model, layers=len(windows), attention=layers)
    assert window_past(spec, [StepShape(*shape) for shape in shapes]) == columns
