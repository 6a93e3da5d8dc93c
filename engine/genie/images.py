"""The graph of images in a folder, and what the folder tells of images: `metadata.json`, `img-enc-htp.json`. Keys: what
qai-hub-models 0.65 writes. What cannot be served of it leaves the text to be served alone."""

import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from engine.bundle.images import check_images
from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, TensorSpec
from engine.bundle.vision import (
    DEEP,
    FEATURES,
    PIXEL_VALUES,
    SEEN_IN_WINDOW,
    Cutting,
    FixedSpec,
    NativeSpec,
    VisionSpec,
)
from engine.errors import BundleError
from engine.files import TOKENIZER_BYTES, confined, is_regular
from engine.genie.config import Fields, load_fields, load_optional
from engine.genie.parts import INTEGERS
from engine.genie.text import GenieText, read_metadata, token_ids
from engine.runtime.qnn.binary import BinaryGraph, BinaryInfo, BinaryTensor, ContextNode

log = logging.getLogger("hexserve.genie")

ENCODER_FILE = "img-enc-htp.json"
VISION_FILE = "vision.onnx"
MOST_PIXELS = 4096  # of a side
PADS = ("<|image_pad|>", "<IMG_CONTEXT>", "<image>")  # of Qwen, InternVL and SmolVLM
WINDOW_PIXELS = 112  # of Qwen2.5-VL, where config.json does not tell


@dataclass(frozen=True, slots=True)
class GenieImages:
    """What goes into the manifest, the node that runs it, and where its binary lies."""

    vision: VisionSpec
    graph: GraphSpec
    node: ContextNode
    path: Path
    info: BinaryInfo

    def beside(self, text: Manifest) -> Manifest:
        npu, node = text.npu, self.node
        assert npu is not None
        npu = msgspec.structs.replace(
            npu,
            binaries=npu.binaries | {node.binary: (node.graph,)},
            chains=npu.chains | {self.graph.name: ((node.binary, node.graph),)},
        )
        return msgspec.structs.replace(text, vision=self.vision, image_graph=self.graph, npu=npu)


def read_images(
    folder: Path, model: Fields, text: GenieText, manifest: Manifest, describe: Callable[[Path], BinaryInfo]
) -> GenieImages | None:
    """None without an encoder of images, or with one that is not served; the log says why. manifest: of the text."""
    metadata = read_metadata(folder).group("genie")
    if metadata.values.get("supports_vision") is not True and not any(folder.glob("vision_encoder*.bin")):
        return None
    try:
        found = _read(folder, metadata, model, text, describe)
        check_images(found.beside(manifest))
        if found.vision.native is not None and not manifest.model.rope.axes:
            raise BundleError("no mrope-section tells by which positions the rows of an image turn")
    except BundleError as error:
        log.warning(
            "%s has an encoder of images, which is not served (%s): the model answers text only", folder.name, error
        )
        return None
    return found


def _read(
    folder: Path, metadata: Fields, model: Fields, text: GenieText, describe: Callable[[Path], BinaryInfo]
) -> GenieImages:
    sizes, path = _sizes(metadata), _binary(folder)
    info = describe(path)
    graphs = [graph for graph in info.graphs if any(tensor.name == PIXEL_VALUES for tensor in graph.inputs)]
    if len(graphs) != 1:
        raise BundleError(f"{path.name} has {len(graphs)} graphs with an input {PIXEL_VALUES}, one is expected")
    (found,) = graphs
    sides = tuple(map(_spec, found.inputs)), tuple(map(_spec, found.outputs))
    graph = GraphSpec("vision", VISION_FILE, GraphKind.IMAGE_ENCODER, 1, 1, *sides)
    inputs, outputs = (tuple(tensor.name for tensor in side) for side in sides)
    node = ContextNode(found.name, path.name, inputs, outputs, sdk_version=info.build_id)
    return GenieImages(_vision(metadata, sizes, model, text, found), graph, node, path, info)


def _binary(folder: Path) -> Path:
    engine = load_optional(folder / ENCODER_FILE).group("image-encoder").group("engine")
    told = engine.group("model").group("binary").texts("ctx-bins")
    names = told or tuple(sorted(path.name for path in folder.glob("vision_encoder*.bin")))
    if len(names) != 1:
        raise BundleError(f"its encoder has {len(names)} binaries, one is expected")
    with suppress(OSError):
        path = confined(folder, Path(names[0].replace("\\", "/")).name)
        if is_regular(path):
            return path
    raise BundleError(f"there is no {names[0]}")


def _spec(tensor: BinaryTensor) -> TensorSpec:
    """BundleError for a tensor of several scales, or one that lacks its scale."""
    if tensor.dtype in INTEGERS and (tensor.encoding is None or len(tensor.encoding.scales) != 1):
        raise BundleError(f"tensor {tensor.name} is {tensor.dtype} and has no scale")
    return tensor.spec()


def _sizes(metadata: Fields) -> FixedSpec:
    told = metadata.group("vision_preprocessing")
    height, width = (told.integer(name, 1, MOST_PIXELS, 0) for name in ("image_height", "image_width"))
    if not height or not width:
        raise BundleError("metadata.json tells no vision_preprocessing with image_height and image_width")
    return FixedSpec(height, width, _colours(told, "normalize_mean"), _colours(told, "normalize_std"))


def _vision(metadata: Fields, fixed: FixedSpec, model: Fields, text: GenieText, graph: BinaryGraph) -> VisionSpec:
    told, height, width = metadata.group("vision_preprocessing"), fixed.height, fixed.width
    shapes = {tensor.name: tensor.shape for tensor in (*graph.inputs, *graph.outputs)}
    pixels, rows = ([size for size in shapes.get(name, ()) if size != 1] for name in (PIXEL_VALUES, FEATURES))
    deep = sum(1 for tensor in graph.outputs if DEEP.fullmatch(tensor.name))
    if len(rows) != 2:
        raise BundleError(f"{FEATURES} of {graph.name} is {rows}, rows of the text are expected")
    pad, token = _pad(text, model)
    chat = metadata.group("chat_template")
    opening, closing = chat.text("vision_start", ""), chat.text("vision_end", "")
    if opening and opening in (text.template or ""):  # the template writes what stands round the rows of an image
        opening = closing = ""
    spec = VisionSpec(
        VISION_FILE, Cutting.WHOLE, height, rows[0], token, pad, pad, opening=opening, closing=closing, fixed=fixed
    )
    if len(pixels) == 3:
        if height != width:
            raise BundleError(f"an image of {width} x {height} pixels that is no list of patches must be square")
        return msgspec.structs.replace(spec, deepstack=deep)
    patch, merge = (told.integer(name, 1, 256, 0) for name in ("patch_size", "spatial_merge_size"))
    if not patch or not merge:
        raise BundleError("metadata.json: vision_preprocessing needs patch_size and spatial_merge_size")
    window = 0
    if SEEN_IN_WINDOW in shapes and not deep:
        side = model.group("vision_config").integer("window_size", 1, MOST_PIXELS, WINDOW_PIXELS)
        window = side // (patch * merge)
    return msgspec.structs.replace(
        spec,
        cutting=Cutting.NATIVE,
        side=0,
        tokens=0,
        native=NativeSpec(patch, merge, height * width, height * width, (rows[0],), window),
        deepstack=deep,
        fixed=msgspec.structs.replace(fixed, frames=told.integer("temporal_patch_size", 1, 16, 2)),
    )


def _colours(told: Fields, name: str) -> tuple[float, float, float]:
    values = told.values.get(name)
    numbers = [value for value in values if isinstance(value, int | float)] if isinstance(values, list) else []
    if len(numbers) != 3 or not all(map(math.isfinite, numbers)) or (name.endswith("std") and min(numbers) <= 0):
        raise BundleError(f"metadata.json: vision_preprocessing.{name} must be three numbers")
    return float(numbers[0]), float(numbers[1]), float(numbers[2])


def _pad(text: GenieText, model: Fields) -> tuple[str, int]:
    assert isinstance(text.tokenizer, Path), "a folder has a file of its tokenizer"
    ids = token_ids(load_fields(text.tokenizer, TOKENIZER_BYTES))
    told = model.integer("image_token_id", 0, 1 << 24, -1)
    known = [name for name, number in ids.items() if number == told] + [name for name in PADS if name in ids]
    if not known:
        raise BundleError(f"the tokenizer has none of {', '.join(PADS)}, which stand for images")
    return known[0], ids[known[0]]
