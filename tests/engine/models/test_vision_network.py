"""Images of one size leave half of the context to the text, and their learned positions are transformers'."""

import numpy as np
import pytest
import torch
from transformers.vision_utils import get_vision_interpolation_indices_and_weights

from engine.bundle.vision import Cutting, VisionSpec
from engine.models.network import Activation
from engine.models.vision_network import NativeNetwork, VisionNetwork, native_of, stretched_shares, with_one_size
from tests.vision_facts import IDEFICS, INTERN, QWEN

COLOURS = (0.5, 0.5, 0.5)


def tiles(spec: VisionSpec) -> VisionNetwork:
    return VisionNetwork(spec, "", "", 8, 48, 2, 4, 80, 1e-6, Activation.GELU, 2, COLOURS, COLOURS)


@pytest.mark.parametrize(
    ("context", "longest", "most"), [(4096, 128, 6), (136, 128, 6), (64, 64, 6), (32, 32, 3), (8, 32, 1)]
)
def test_fewer_tiles_in_a_short_context(context: int, longest: int, most: int) -> None:
    """Of four rows each: 17 are 68 rows, and so on."""
    grid, canvas = (with_one_size(tiles(spec), context).spec for spec in (IDEFICS, INTERN))
    assert (grid.cutting, grid.longest) == (Cutting.GRID, longest)
    assert (canvas.cutting, canvas.most_tiles) == (Cutting.CANVAS, most)
    assert grid.fixed is not None and grid.fixed.width == IDEFICS.side


def native(table_side: int) -> NativeNetwork:
    return NativeNetwork(QWEN, "", 48, 3, 2, 80, 1e4, Activation.GELU, COLOURS, COLOURS, table_side=table_side)


@pytest.mark.parametrize(("context", "cells"), [(4096, 16), (512, 16), (511, 8), (128, 8), (8, 2)])
def test_a_square_of_at_most_256_rows(context: int, cells: int) -> None:
    spec = with_one_size(native(6), context).spec
    assert spec.fixed is not None
    assert (spec.fixed.height, spec.fixed.width) == (cells * native_of(spec).cell,) * 2


def test_positions_are_those_of_transformers() -> None:
    """A table of 6 x 6 over 16 x 16 patches, cell by cell."""
    network = with_one_size(native(6), 128)
    assert isinstance(network, NativeNetwork)
    places, weights = get_vision_interpolation_indices_and_weights(
        torch.tensor([[1, 16, 16]]), 6, "bilinear", align_corners=True, spatial_merge_size=2
    )
    expected = np.zeros((256, 36))
    np.add.at(expected, (np.arange(256)[:, None], places.numpy()), weights.numpy())
    assert np.abs(stretched_shares(network) - expected).max() < 1e-6
