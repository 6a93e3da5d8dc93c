"""What a pool's graphs and that of images have in common: images of one size, in the contract of GenieX. Legend: P =
patches of an image, T = rows of the text that it becomes, H = hidden size, D = pairs that turn in a head."""

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest, TensorSpec
from engine.bundle.tensors import COS, SIN, Form, check_form, check_forms
from engine.bundle.vision import FEATURES, IMAGE_ROWS, PIXEL_VALUES, SEEN, SEEN_IN_WINDOW, VisionSpec, deep_features
from engine.errors import BundleError


def rows_of_image(vision: VisionSpec) -> int:
    """T, where images have one size."""
    if vision.native is None or vision.fixed is None:
        return vision.tokens
    return vision.fixed.height // vision.native.cell * (vision.fixed.width // vision.native.cell)


def cell_order(vision: VisionSpec) -> NDArray[np.int64]:
    """The cells T of a native image of one size, window after window: in this order graphs with windows take rotation
    and masks (transformers `get_vision_window_index`); row by row where there are none."""
    native, fixed = vision.native, vision.fixed
    assert native is not None and fixed is not None
    columns = fixed.width // native.cell
    row, column = np.divmod(np.arange(rows_of_image(vision)), columns)
    side = native.window or max(fixed.height, fixed.width)
    return np.lexsort((column, row, column // side, row // side))


def check_images(manifest: Manifest) -> None:
    """BundleError names the tensor of a graph that does not fit what the manifest says of images."""
    vision, graph = manifest.vision, manifest.image_graph
    if vision is None and graph is None:
        return
    if vision is None or vision.fixed is None or graph is None:
        raise BundleError("images of a pool have one size: vision.fixed and image_graph go together")
    if manifest.is_serial or manifest.reads_whole_context or manifest.fused is not None:
        raise BundleError("vision: graphs of one sequence, of whole contexts and fused ones read no images")
    if vision.file != graph.file:
        raise BundleError(f"vision.file is {vision.file}, image_graph has {graph.file}")
    hidden = manifest.model.hidden
    rows: Form = ("", (rows_of_image(vision), hidden))
    deep = tuple(map(deep_features, range(vision.deepstack)))
    outputs = dict.fromkeys((FEATURES, *deep), rows)
    check_forms(graph, _inputs(vision, {tensor.name: tensor for tensor in graph.inputs}), outputs)
    taken = {tensor.name for spec in manifest.graphs for tensor in spec.inputs}
    if missing := sorted({IMAGE_ROWS, *deep} - taken if deep else ()):
        raise BundleError(f"vision.deepstack is {vision.deepstack}, but no graph has the input {missing[0]}")
    for spec in manifest.graphs:
        for tensor in spec.inputs:
            if tensor.name in deep:
                places = tensor.shape[-2] if len(tensor.shape) > 1 else 0
                if not isinstance(places, int) or places < (spec.rows or 0):
                    raise BundleError(f"graph {spec.name}: {tensor.name} has room for {places} of {spec.rows} rows")
                check_form(spec, "input", tensor, ("", (places, hidden)))


def _inputs(vision: VisionSpec, given: dict[str, TensorSpec]) -> dict[str, Form]:
    assert vision.fixed is not None
    fixed, native = vision.fixed, vision.native
    if native is None:
        return {PIXEL_VALUES: ("", (3, fixed.height, fixed.width))}
    if fixed.height % native.cell or fixed.width % native.cell:
        raise BundleError(f"vision.fixed: {native.cell}, a cell's side, must divide {fixed.height} x {fixed.width}")
    patches = rows_of_image(vision) * native.merge**2
    pairs = given[COS].shape[-1] if COS in given and given[COS].shape else 0
    masks = [name for name in (SEEN, SEEN_IN_WINDOW) if name in given]
    return {
        PIXEL_VALUES: ("", (patches, 3 * fixed.frames * native.patch**2)),
        **dict.fromkeys((COS, SIN), ("", (patches, pairs))),
        **dict.fromkeys(masks, ("", (patches, patches))),
    }
