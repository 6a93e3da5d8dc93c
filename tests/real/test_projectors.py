"""Models that read images, as llama.cpp's converter makes two GGUF files of their folders: the bundle is the same."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize, quantize
from msgspec.structs import replace
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from engine.bundle.manifest import Manifest, load_manifest
from engine.bundle.vision import VisionSpec
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.check.parity import bundle_logits
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from tests.engine.vision.judges import rows_differ
from tests.vision_facts import GEMMA_ROWS
from tests.vision_models import (
    QWEN_PROCESSOR,
    with_published_names,
    write_gemma3,
    write_idefics3,
    write_internvl,
    write_qwen_vl,
)

Floats = NDArray[np.float32]
ALWAYS_HALVES = "input_projection_weight"  # Gemma's, in any file
INTERNVL = partial(write_internvl, num_hidden_layers=4)  # the converter counts its connector among the layers
# Windows of Qwen2.5-VL are 8 patches of 14 pixels wide, which files do not say.
MODELS: dict[str, tuple[Callable[..., Any], str]] = {
    "SmolVLM": (write_idefics3, "SmolVLM"),
    # Files have every sixth layer see all.
    "Gemma 3": (partial(write_gemma3, layer_types=["sliding_attention"] * 3), "Gemma3"),
    "InternVL of Qwen2": (INTERNVL, "qwen2"),
    "InternVL of Qwen3": (INTERNVL, "qwen3"),
    "Qwen2.5-VL": (partial(write_qwen_vl, patch_size=14, window_size=112), "Qwen2_5_VL"),
    "Qwen3-VL": (write_qwen_vl, "Qwen3VL"),
    "Qwen3.5": (write_qwen_vl, "Qwen3_5"),
    "Qwen3.5 with experts": (write_qwen_vl, "Qwen3_5Moe"),
}


Files = Callable[[Path, str, str], Path]


@pytest.fixture
def converted(convert: Callable[..., None], tmp_path: Path) -> Files:
    """Makes two files of a folder: text in float32, images in a type of storage; the first of them."""

    def both(folder: Path, kind: str, storage: str) -> Path:
        with_merges(folder)
        if kind == "Gemma3":
            with_published_names(folder)
        wanted = as_the_converter_wants_it(folder, tmp_path / "wanted")
        files = tmp_path / "files"
        files.mkdir()
        of_text = ("--no-mtp",) if kind.startswith("Qwen3_5") else ()  # the tiny one has no layers that guess
        for options in ((*of_text, "--outtype", "f32"), ("--mmproj", "--outtype", storage)):
            file = files / ("mmproj-model.gguf" if "--mmproj" in options else "model.gguf")
            convert(*options, "--outfile", str(file), str(wanted))
        return files / "model.gguf"

    return both


@pytest.mark.parametrize("name", MODELS)
def test_two_files_make_the_bundle_of_the_folder(name: str, tmp_path: Path, converted: Files) -> None:
    """What a file does not say, bounds of pixels and of tiles, is as the models were published."""
    write, kind = MODELS[name]
    folder = tmp_path / "folder"
    write(folder, kind)
    if kind == "Gemma3":
        change_tensors(folder, lambda name, value: as_halves(value) if name.endswith(ALWAYS_HALVES) else value)
    model = converted(folder, kind, "f32")
    expected, found = compiled(folder, tmp_path / "expected"), compiled(model, tmp_path / "found")
    for file in ("vision.onnx", "vision.data"):
        assert (found[0] / file).read_bytes() == (expected[0] / file).read_bytes()
    assert without_bounds(found[1]) == without_bounds(expected[1])
    text = list(range(40, 100))
    logits = [bundle_logits(*each, [text], rows=24) for each in (found, expected)]
    # Files of Qwen3.5 have norms plus one and decays as powers, which rounds.
    assert np.abs(logits[0] - logits[1]).max() <= (1e-4 if kind.startswith("Qwen3_5") else 0)


def as_halves(value: Floats) -> Floats:
    return value.astype(np.float16).astype(np.float32)


def as_brain_floats(value: Floats) -> Floats:
    return torch.tensor(value).to(torch.bfloat16).float().numpy()


def as_codes(value: Floats) -> Floats:
    """Blocks of 32 codes of 8 bits; what is no whole number of blocks wide is stored as halves."""
    if value.shape[-1] % 32:
        return as_halves(value)
    return dequantize(quantize(value, GGMLQuantizationType.Q8_0), GGMLQuantizationType.Q8_0)


STORAGES = {"f16": as_halves, "bf16": as_brain_floats, "q8_0": as_codes}
# Codes of every encoder, as its widths say what is stored otherwise; whoever reads the rest reads it of any.
STORED = [(name, "q8_0") for name in MODELS if name != "Qwen3.5 with experts"]  # which has Qwen3.5's encoder
STORED += [("Gemma 3", "f16"), ("InternVL of Qwen2", "f16"), ("Gemma 3", "bf16"), ("Qwen3-VL", "bf16")]


@pytest.mark.parametrize(("name", "storage"), STORED)
def test_rows_of_encoders_stored_in_fewer_bits(name: str, storage: str, tmp_path: Path, converted: Files) -> None:
    """transformers' within 1e-4, by an encoder whose matrices are those that the file can hold."""
    write, kind = MODELS[name]
    widths = {"hidden_size": 64, "intermediate_size": 96}
    folder = tmp_path / "folder"
    model = write(folder, kind, **{"encoder": widths} if kind == "Gemma3" else widths)
    rounded = STORAGES[storage]
    change_tensors(folder, lambda name, value: rounded(value) if is_stored_so(name, value) else value)
    change_tensors(folder, lambda name, value: as_halves(value) if name.endswith(ALWAYS_HALVES) else value)
    model = type(model).from_pretrained(folder, dtype=torch.float32).eval()
    found, manifest = compiled(converted(folder, kind, storage), tmp_path / "found")
    stored = {
        str(tensor.tensor_type.name).lower() for tensor in GGUFReader(tmp_path / "files/mmproj-model.gguf").tensors
    }
    assert storage in stored
    assert manifest.vision is not None
    assert rows_differ(model, found, bounded(manifest.vision)) < 1e-4


def is_stored_so(name: str, value: Floats) -> bool:
    """Whether it is a matrix of the encoder."""
    return value.ndim > 1 and any(part in name for part in ("vision", "visual", "connector", "projector"))


def bounded(spec: VisionSpec) -> VisionSpec:
    """With the tiny models' own bounds of pixels."""
    if spec.native is None:
        return spec
    least, most = QWEN_PROCESSOR["size"].values()
    return replace(spec, native=replace(spec.native, least_pixels=least, most_pixels=most))


def with_merges(folder: Path) -> None:
    """A tokenizer that joins something: files have to have merges."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["vocab"]["th"], tokenizer["model"]["merges"] = 300, [["t", "h"]]
    path.write_text(json.dumps(tokenizer))


def with_every_token(folder: Path, count: int) -> None:
    """A tokenizer of so many tokens: of Gemma the converter cuts the embedding to those that it counts."""
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    words = tokenizer["model"]["vocab"]
    known = {*words.values(), *(token["id"] for token in tokenizer["added_tokens"])}
    unused = [number for number in range(count) if number not in known]
    of_the_class = ("<bos>", "<eos>", "<unk>", "<pad>", "<mask>")  # which would be added behind all others
    words |= dict(zip((*of_the_class, *(f"[unused {number}]" for number in unused)), unused, strict=False))
    path.write_text(json.dumps(tokenizer))


def change_tensors(folder: Path, change: Callable[[str, Floats], Floats]) -> None:
    tensors = load_file(folder / "model.safetensors")
    changed = {name: change(name, value) for name, value in tensors.items()}
    save_file(changed, folder / "model.safetensors", {"format": "pt"})


def as_the_converter_wants_it(folder: Path, output: Path) -> Path:
    """A copy that says which class its parts have; the converter reads InternVL under other names."""
    shutil.copytree(folder, output)
    config = json.loads((output / "config.json").read_text())
    if config["model_type"] == "gemma3":
        with_every_token(output, config["text_config"]["vocab_size"])
        path = output / "preprocessor_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"image_seq_length": GEMMA_ROWS}))
    kinds = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    if (kind := config["text_config"]["model_type"]) in kinds:
        config["text_config"] |= {"architectures": [kinds[kind]], "bos_token_id": None}
    if config["model_type"] == "internvl":
        config["vision_config"]["architectures"] = ["InternVisionModel"]
        tensors = load_file(output / "model.safetensors")
        renamed = {name if name.startswith("language_model.") else f"model.{name}": tensors[name] for name in tensors}
        save_file(renamed, output / "model.safetensors")
    (output / "config.json").write_text(json.dumps(config))
    return output


def compiled(source: Path, output: Path) -> tuple[Path, Manifest]:
    """In float."""
    compile_bundle(CompileArguments(source, output, quant=Quant.FP32), SilentProgress())
    return output, load_manifest(output)


def without_bounds(manifest: Manifest) -> dict[str, Any]:
    """How images are cut, but for how many pixels or tiles of one are the least and the most."""
    assert manifest.vision is not None
    facts: dict[str, Any] = msgspec.to_builtins(manifest.vision)
    native = facts.get("native") or {}
    for name in ("least_pixels", "most_pixels"):
        native.pop(name, None)
    told = dict.fromkeys(("token", "pad")) if manifest.vision.both_ways else {}  # of Gemma's own tokenizer
    return facts | {"most_tiles": None} | told
