"""What a Genie folder tells of its graph of images, in the keys of qai-hub-models 0.65."""

from collections.abc import Mapping
from typing import Any

from engine.bundle.manifest import Manifest
from engine.bundle.model_spec import RopeSpec
from engine.bundle.vision import Cutting
from engine.errors import BundleError
from engine.genie.extras import BY_AXIS
from engine.genie.images import ENCODER_FILE, PADS

TEXT_ENCODER_FILE, GENERATOR_FILE = "text-encoder.json", "text-generator.json"
NODES = {"imageEncoder": ENCODER_FILE, "lutEncoder": TEXT_ENCODER_FILE, "textGenerator": GENERATOR_FILE}
EMBEDDINGS = {
    "imageEncoder": "GENIE_NODE_IMAGE_ENCODER_EMBEDDING_OUTPUT",
    "lutEncoder": "GENIE_NODE_TEXT_ENCODER_EMBEDDING_OUTPUT",
}
TAKEN, ANY = "GENIE_NODE_TEXT_GENERATOR_EMBEDDING_INPUT", "GENIE_NODE_WILDCARD"
QWEN_PAD = PADS[0]
QWEN_AROUND = ("<|vision_start|>", "<|vision_end|>")  # which its chat template writes


def image_files(manifest: Manifest, config: Mapping[str, object], dialog: object, extensions: str) -> dict[str, object]:
    """The files of a folder that reads images, by name; none for a text model. dialog: of genie_config.json.

    BundleError for images that Genie has no form of.
    """
    vision, npu, graph = manifest.vision, manifest.npu, manifest.image_graph
    if vision is None or vision.fixed is None or graph is None:
        return {}
    if vision.cutting is Cutting.GRID:
        raise BundleError("Genie has no images that are cut into rows of tiles")
    if vision.both_ways:
        raise BundleError("Genie has no rows that see those behind them")
    assert npu is not None and manifest.embedding is not None
    patch = vision.native.patch if vision.native is not None else patch_of(config)
    sizes = {"height": vision.fixed.height // patch, "width": vision.fixed.width // patch}
    own = {"version": 1, "spill-fill-bufsize": 0, "use-mmap": False, "allow-async-init": False}
    back_end = {"version": 1, "type": "QnnHtp", "QnnHtp": own, "extensions": extensions}
    binary = {"version": 1, "ctx-bins": [file for file, _ in npu.chains[graph.name]]}
    model = {"version": 1, "type": "binary", "binary": binary, "vision-param": sizes}
    engine = {"version": 1, "mode": "image", "backend": back_end, "model": model}
    table = {"version": 1, "lut-path": manifest.embedding.file, "size": manifest.embedding.width}
    lut = table | {"datatype": manifest.embedding.dtype}
    reader = {"version": 1, "path": manifest.text.tokenizer}
    return {
        ENCODER_FILE: {"image-encoder": {"version": 1, "engine": engine}},
        TEXT_ENCODER_FILE: {"text-encoder": {"version": 1, "type": "lut", "lut": lut, "tokenizer": reader}},
        GENERATOR_FILE: {"text-generator": dialog},
        "config.json": dict(config),
    }


def image_metadata(manifest: Manifest, config: Mapping[str, object]) -> dict[str, Any]:
    """What metadata.json tells of images under `genie`."""
    vision = manifest.vision
    if vision is None or vision.fixed is None:
        return {}
    fixed, native = vision.fixed, vision.native
    opening, closing = QWEN_AROUND if vision.pad == QWEN_PAD else (vision.opening, vision.closing)
    connections = [connection(node, output, TAKEN) for node, output in EMBEDDINGS.items()]
    connections += [connection("imageEncoder", ANY, ANY)] if vision.deepstack else []
    return {
        "supports_vision": True,
        "chat_template": {"vision_start": opening, "vision_end": closing},
        "pipeline": {"nodes": NODES, "connections": connections},
        "vision_preprocessing": {
            "image_width": fixed.width,
            "image_height": fixed.height,
            "patch_size": native.patch if native is not None else patch_of(config),
            "temporal_patch_size": fixed.frames,
            "spatial_merge_size": native.merge if native is not None else 2,
            "normalize_mean": list(fixed.mean),
            "normalize_std": list(fixed.std),
        },
    }


def connection(node: str, output: str, taken: str) -> dict[str, str]:
    """Of the text generator with what it takes."""
    ends = {"producer_node": node, "producer_node_io": output}
    return ends | {"consumer_node": "textGenerator", "consumer_node_io": taken}


def patch_of(config: Mapping[str, object]) -> int:
    """Pixels of a side of a patch of tiles."""
    encoder = config.get("vision_config")
    found = encoder.get("patch_size") if isinstance(encoder, Mapping) else None
    found = found[0] if isinstance(found, list) and found else found
    return found if isinstance(found, int) and found > 0 else 1


def by_axis(rope: RopeSpec, merge: int) -> dict[str, object]:
    """The rotation of rows of images as `rope-scaling`."""
    is_woven = list(rope.axes) != sorted(rope.axes)
    sections = [rope.axes.count(axis) for axis in range(3)]
    return {
        "rope-type": BY_AXIS[is_woven],
        "time-step": 50,
        "spatial-merge-size": merge,
        "mrope-section": sections,
    }
