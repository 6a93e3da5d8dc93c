"""What a graph of one size takes of an image, against transformers."""

import msgspec
import numpy as np
import pytest
import torch
from transformers.vision_utils import get_vision_position_ids, get_vision_window_index

from engine.bundle.images import cell_order, rows_of_image
from engine.bundle.vision import FixedSpec, VisionSpec
from engine.runtime.vision import normalised, patches_of, places_of
from tests.engine.vision.judges import picture, qwen_processor
from tests.vision_facts import QWEN, QWEN_CELLS
from tests.vision_models import QWEN_PROCESSOR

MEAN, STD = (tuple(QWEN_PROCESSOR[name]) for name in ("image_mean", "image_std"))


def spec(rows: int, columns: int, window: int = 0) -> VisionSpec:
    """Of so many cells."""
    native = msgspec.structs.replace(QWEN_CELLS, window=window)
    fixed = FixedSpec(rows * native.cell, columns * native.cell, MEAN, STD, frames=2)
    return msgspec.structs.replace(QWEN, native=native, fixed=fixed)


def test_patches_are_those_of_the_processor() -> None:
    found = spec(5, 8)
    assert found.fixed is not None and found.native is not None
    image = picture(found.fixed.width, found.fixed.height, 1)
    pixels = np.asarray(image).transpose(2, 0, 1)
    values = patches_of(normalised(pixels, found.fixed), found.native, 2)
    expected = qwen_processor()([image], return_tensors="np")["pixel_values"]
    assert values.shape == expected.shape == (rows_of_image(found) * 4, 3 * 2 * 16)
    assert np.abs(values - expected).max() < 1e-5


@pytest.mark.parametrize(("rows", "columns"), [(8, 8), (5, 9), (12, 18), (3, 2)])
def test_places_and_windows_are_those_of_transformers(rows: int, columns: int) -> None:
    """Windows of four cells, also at edges that cut them."""
    found = spec(rows, columns, window=4)
    assert found.fixed is not None and found.native is not None
    grid = torch.tensor([[1, 2 * rows, 2 * columns]])
    order, _ = get_vision_window_index(grid, 2, 32, 4)
    assert cell_order(found).tolist() == order.tolist()
    places = get_vision_position_ids(grid, 2).numpy()
    assert (
        places_of(found.native, found.fixed.height, found.fixed.width).reshape(-1, 2) == places.reshape(-1, 2)
    ).all()
