"""Adds an encoder of images to a generated folder, as qai-hub-models 0.65 lays it out, and asks with images."""

import json
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import onnx
from PIL import Image

from engine.bundle.manifest import load_manifest
from engine.bundle.vision import VisionSpec
from engine.compile.graphs.vision import vision_graph
from engine.compile.quantisation.weight_file import WeightFile
from engine.compile.sources.checkpoint import SafetensorsCheckpoint, read_json
from engine.models.vision import read_vision
from engine.models.vision_network import VISION_DATA, VisionFiles, with_one_size
from engine.request import PromptImage, Request
from engine.runtime.qnn.binary import BinaryInfo
from engine.vision.pictures import tiles_of
from engine.vision.question import Picture
from tests.engine.vision.judges import saved
from tests.genie.generator import BUILD_ID, Generated, describe
from tests.genie.served import answered, greedily

ENCODER, GRAPH = "vision_encoder.bin", "vision_encoder"
KINDS = {"qwen2_5_vl": "qwen2vl-mrope", "qwen3_vl": "qwen3vl-mrope"}
Change = Callable[[onnx.ModelProto], None]


def add_encoder(made: Generated, checkpoint: Path, change: Change = lambda _: None) -> VisionSpec:
    """The encoder of a checkpoint for half of the folder's context, and what the folder tells of it."""
    config, processor = (read_json(checkpoint / name) for name in ("config.json", "preprocessor_config.json"))
    tokens = {each["content"]: each["id"] for each in read_json(checkpoint / "tokenizer.json")["added_tokens"]}  # type: ignore[attr-defined]
    found = read_vision(VisionFiles(config, processor, tokens.get))
    assert found is not None
    network, dtype = (
        with_one_size(found, made.recipe.context_tokens),
        "float16" if made.recipe.precision == "w4" else "float32",
    )
    folder = made.folder.parent / f"{made.folder.name}.vision"
    folder.mkdir()
    width = config["text_config"]["hidden_size"]  # type: ignore[index]
    with (
        SafetensorsCheckpoint(checkpoint) as weights,
        WeightFile(folder, VISION_DATA, dtype) as file,
    ):
        model = vision_graph(network, weights, file, width, dtype, lambda _: None).model(GRAPH)
    onnx.external_data_helper.load_external_data_for_model(model, str(folder))
    change(model)
    made.models[ENCODER] = {GRAPH: model}
    made.infos[ENCODER] = BinaryInfo(BUILD_ID, (describe(GRAPH, model, {}, {}),))
    (made.folder / ENCODER).write_bytes(b"placeholder")
    tell(made.folder, network.spec, config)
    return network.spec


def tell(folder: Path, spec: VisionSpec, config: Mapping[str, object]) -> None:
    """The files of a pipeline, and the rotation of rows of images."""
    fixed, native = spec.fixed, spec.native
    assert fixed is not None
    patch = native.patch if native else 8
    told = {
        "image_width": fixed.width,
        "image_height": fixed.height,
        "patch_size": patch,
        "temporal_patch_size": fixed.frames,
        "spatial_merge_size": native.merge if native else 2,
        "normalize_mean": list(fixed.mean),
        "normalize_std": list(fixed.std),
    }
    start, end = ("<|vision_start|>", "<|vision_end|>") if native else ("<img>", "</img>")
    chat = {"vision_start": start, "vision_end": end}
    genie = {"supports_vision": True, "chat_template": chat, "vision_preprocessing": told}
    (folder / "metadata.json").write_text(json.dumps({"genie": genie}))
    sizes = {"height": fixed.height // patch, "width": fixed.width // patch}
    model = {"type": "binary", "binary": {"version": 1, "ctx-bins": [ENCODER]}, "vision-param": sizes}
    (folder / "img-enc-htp.json").write_text(json.dumps({"image-encoder": {"engine": {"model": model}}}))
    kind = KINDS.get(str(config["model_type"]))
    if kind is None:
        return
    path = folder / "genie_config.json"
    document = json.loads(path.read_text())
    engine = document["dialog"]["engine"]
    theta = engine["backend"]["QnnHtp"].pop("rope-theta")
    rope = config["text_config"]["rope_parameters"]  # type: ignore[index]
    scaling = {"rope-type": kind, "time-step": 50, "spatial-merge-size": 2, "mrope-section": rope["mrope_section"]}
    dims = engine["backend"]["QnnHtp"].pop("pos-id-dim")
    engine["model"]["positional-encoding"] = {
        "type": "rope",
        "rope-dim": dims,
        "rope-theta": theta,
        "rope-scaling": scaling,
    }
    path.write_text(json.dumps(document))


def prompt_of(spec: VisionSpec, pieces: Sequence[int | Image.Image]) -> tuple[list[int], tuple[PromptImage, ...]]:
    """Tokens and images in order -> ids with a placeholder for every row, and where the images stand."""
    ids: list[int] = []
    images: list[PromptImage] = []
    for piece in pieces:
        if isinstance(piece, int):
            ids.append(piece)
            continue
        tiles = tiles_of(Picture(saved(piece)), spec)
        grid = (tiles.rows, tiles.columns) if spec.native else (0, 0)
        for tile in tiles.tiles:
            count = spec.tokens or tiles.rows * tiles.columns
            images.append(
                PromptImage(len(ids), count, blake2b(tile).digest(), tile, grid=grid, both_ways=spec.both_ways)
            )
            ids += [spec.token] * count
    return ids, tuple(images)


def answers(
    folder: Path, questions: Mapping[str, Sequence[int | Image.Image]], count: int, **settings: object
) -> dict[str, list[int]]:
    """What the worker's engine makes of questions that come at once; greedy."""
    spec = load_manifest(folder).vision
    assert spec is not None
    asked = []
    for name, pieces in questions.items():
        ids, images = prompt_of(spec, pieces)
        asked.append(Request(name, tuple(ids), greedily(count), images=images))
    return answered(folder, asked, **settings)
