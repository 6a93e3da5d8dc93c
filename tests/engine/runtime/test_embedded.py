"""What rows of images turn by, against transformers."""

import numpy as np
import torch
from transformers import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel

from engine.request import PromptImage
from engine.runtime.embedded import axes_of, joined
from tests.vision_models import QWEN_VISION, TEXT

GRIDS = ((2, 3), (5, 1), (1, 4))
PAD = 9


def shown() -> tuple[list[int], tuple[PromptImage, ...]]:
    """Tokens, some of which stand for images."""
    ids, images = [1, 2], []
    for rows, columns in GRIDS:
        images.append(PromptImage(len(ids), rows * columns, b"", b"", grid=(rows, columns)))
        ids += [PAD] * rows * columns + [3, 4]
    return ids, tuple(images)


def test_axes_are_those_of_transformers() -> None:
    """In prefill and behind it, in any piece of a step."""
    ids, images = shown()
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
    config = Qwen2_5_VLConfig(text_config={**TEXT, "rope_parameters": rope}, vision_config=QWEN_VISION)
    asked = torch.tensor([ids])
    grids = torch.tensor([[1, 2 * rows, 2 * columns] for rows, columns in GRIDS])
    with torch.device("meta"):
        model = Qwen2_5_VLModel(config)
    expected, delta = model.get_rope_index(asked, (asked == PAD).int(), image_grid_thw=grids)
    indices = np.arange(len(ids) + 4, dtype=np.int32)
    found = axes_of(indices, [(slice(None), images)])
    assert found is not None
    assert (found[:, : len(ids)] == expected[:, 0].numpy()).all()
    assert (found[:, len(ids) :] == indices[len(ids) :] + delta.item()).all()
    packed = np.concatenate([[0, 0, 7], indices[5:12], [0, 1]]).astype(np.int32)
    pieces = axes_of(packed, [(slice(2, 3), ()), (slice(3, 10), images), (slice(10, 12), ())])
    assert pieces is not None
    assert (pieces[:, 3:10] == found[:, 5:12]).all()
    assert (pieces[:, [0, 1, 2, 10, 11]] == packed[[0, 1, 2, 10, 11]]).all()


def test_tiles_and_texts_turn_by_their_index() -> None:
    images = (PromptImage(0, 4, b"", b""),)
    assert axes_of(np.arange(9, dtype=np.int32), [(slice(None), images), (slice(0), ())]) is None


def test_rows_of_different_widths_lie_in_one_step() -> None:
    wide, narrow = np.ones((2, 6), np.float32), np.ones((1, 3), np.float32)
    found = joined([(4, wide), (1, narrow)])
    assert found is not None
    assert found.rows.tolist() == [4, 5, 1]
    assert found.values[2].tolist() == [1, 1, 1, 0, 0, 0]
