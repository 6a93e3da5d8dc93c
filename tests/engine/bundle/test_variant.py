"""Shapes of a block-diffusion bundle: only those that have the rows of a block; and of images that are not cut."""

import msgspec
import pytest

from engine.bundle.manifest import DiffusionSpec, GraphKind, GraphSpec, Manifest, TextSpec
from engine.bundle.model_spec import ModelSpec, RopeSpec
from engine.bundle.variant import ShapeTable, StepShape, pin, shape_table
from engine.errors import BundleError
from tests.vision_facts import GEMMA, INTERN


def manifest(*shapes: tuple[int, int], block_length: int | None) -> Manifest:
    rope = RopeSpec("default", 1e4, 2, (1.0,))
    graphs = tuple(
        GraphSpec(f"ar{rows}_cl{context}_1_of_1", "a.onnx", GraphKind.DEFAULT, 1, 1, (), (), rows, context)
        for rows, context in shapes
    ) or (GraphSpec("model", "a.onnx", GraphKind.DEFAULT, 1, 1, (), ()),)
    model, text = ModelSpec("sdar", 1, 2, 1, 1, 2, 2, 9, rope), TextSpec("tokenizer.json", None, ())
    made = Manifest(1, "m", "cpu", "fp32", "none", 0, model, graphs, "float32", 512, text, {}, {})
    return msgspec.structs.replace(made, diffusion=DiffusionSpec(block_length, 8) if block_length else None)


ALL = ((1, 160), (8, 96), (8, 160), (32, 96))


def test_rows_of_less_than_a_block_are_left_out() -> None:
    table = shape_table(manifest(*ALL, block_length=8), 256)
    assert table == ShapeTable((StepShape(8, 88), StepShape(8, 152), StepShape(32, 64)), 32, 152, unit=8)
    assert shape_table(manifest(*ALL, block_length=16), 256).max_past == 64
    assert len(shape_table(manifest(*ALL, block_length=None), 256).fixed) == 4


def test_too_few_rows_end_the_start_with_a_sentence() -> None:
    with pytest.raises(BundleError, match="no variant has the 64 rows of a block, the most is 32: compile more --rows"):
        shape_table(manifest(*ALL, block_length=64), 256)
    with pytest.raises(BundleError, match="max_rows is 32, a block of this model takes 64 rows"):
        shape_table(manifest(block_length=64), 32)
    assert shape_table(manifest(block_length=64), 64).unit == 64


def test_one_pinned_shape_has_the_rows_of_a_block() -> None:
    assert pin(shape_table(manifest(block_length=64), 256), 32).fixed == (StepShape(64, 512),)
    assert pin(shape_table(manifest(*ALL, block_length=4), 256), 8).unit == 4


def test_an_image_that_lies_in_one_step_fits_it() -> None:
    """Of 16 rows; tiles of other models may be cut."""
    whole, cut = (msgspec.structs.replace(manifest(block_length=None), vision=vision) for vision in (GEMMA, INTERN))
    with pytest.raises(BundleError, match="max_rows is 15, an image of this model takes 16 rows of one step"):
        shape_table(whole, 15)
    assert shape_table(whole, 16).image_rows == 16 and shape_table(cut, 1).image_rows == 0
    assert pin(shape_table(whole, 64), 8).fixed == (StepShape(16, 512),)


def test_fixed_shapes_of_images_have_no_more_past_than_a_step_of_one() -> None:
    """A decode could see more, but an image behind that would never fit."""
    seeing = msgspec.structs.replace(manifest((1, 160), (32, 96), (32, 160), block_length=None), vision=GEMMA)
    table = shape_table(seeing, 256)
    assert (table.fixed[0], table.max_past, table.image_rows) == (StepShape(1, 159), 128, 16)
    assert pin(table, 8).fixed == (StepShape(32, 128),)
    wide = msgspec.structs.replace(manifest((1, 640), (32, 160), block_length=None), vision=GEMMA)
    assert pin(shape_table(wide, 256), 8).fixed == (StepShape(32, 128),)  # not the wider past, which fits no image
    narrow = msgspec.structs.replace(manifest((1, 160), (8, 160), block_length=None), vision=GEMMA)
    with pytest.raises(BundleError, match="no variant has the 16 rows of an image, the most is 8: compile more --rows"):
        shape_table(narrow, 256)
