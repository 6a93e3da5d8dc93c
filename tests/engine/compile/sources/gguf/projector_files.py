"""Files that read images for a GGUF model, as llama.cpp's converter writes them for SmolVLM and Gemma 3, and only their
facts."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

from tests.engine.compile.sources.gguf.gguf_files import tensors_of, write_gguf
from tests.vision_models import with_published_names, write_gemma3, write_idefics3

FACTS: dict[str, int | float | bool | list[float] | list[bool]] = {
    "vision.image_size": 32,
    "vision.patch_size": 8,
    "vision.embedding_length": 48,
    "vision.feed_forward_length": 80,
    "vision.projection_dim": 64,
    "vision.block_count": 2,
    "vision.attention.head_count": 4,
    "vision.attention.layer_norm_epsilon": 1e-6,
    "vision.image_mean": [0.5, 0.4, 0.5],
    "vision.image_std": [0.5, 0.5, 0.25],
    "vision.projector.scale_factor": 2,
    "vision.preproc_image_size": 128,
}


def write_facts(output: Path, kind: str = "idefics3", **changes: Any) -> Path:
    """A file without tensors. changes: of facts, `__` standing for dots; None leaves one out."""
    writer = _started(output, kind, {name.replace("__", "."): value for name, value in changes.items()})
    _finish(writer)
    return output


@dataclass(frozen=True)
class Pair:
    """A folder as two files. text: the class of its text model, whose names begin with `root`. facts: of the projector.
    renamed: what the converter changes in names."""

    write: Callable[[Path], Any]
    text: str
    root: str
    facts: dict[str, Any] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)


def _write_gemma3(folder: Path) -> None:
    write_gemma3(folder, layer_types=["sliding_attention"] * 3)  # files have every sixth layer see all
    with_published_names(folder)


PAIRS = {
    "idefics3": Pair(write_idefics3, "LlamaForCausalLM", "model.text_model."),
    "gemma3": Pair(
        _write_gemma3,
        "Gemma3ForCausalLM",
        "language_model.model.",
        {"vision.patch_size": 4},
        {"_weight": ".weight"},
    ),
}


def write_projector(source: Path, output: Path, kind: str = "idefics3", is_old: bool = False, **changes: Any) -> Path:
    """The encoder of a folder. is_old: with the names of converters that took the matrices of a feed-forward for each
    other."""
    pair = PAIRS[kind]
    layers = json.loads((source / "config.json").read_text())["vision_config"]["num_hidden_layers"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, layers)
    writer = _started(output, kind, pair.facts | {name.replace("__", "."): value for name, value in changes.items()})
    for name, value in tensors_of(source):
        if not name.startswith((pair.root, "lm_head.")):
            for old, new in pair.renamed.items():
                name = name.replace(old, new)  # noqa: PLW2901
            written = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert written is not None, name
            if is_old:
                written = written.replace("ffn_up", "ffn").replace("ffn_down", "ffn_up").replace("ffn.", "ffn_down.")
            writer.add_tensor(written, value + np.float32(1) if "soft_emb_norm" in written else value)
    _finish(writer)
    return output


def write_pair(folder: Path, files: Path, kind: str = "idefics3") -> tuple[Path, Path]:
    """A folder and the same as two GGUF files; `folder` and the first of these."""
    pair = PAIRS[kind]
    pair.write(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["th"], tokenizer["model"]["merges"] = 300, [["t", "h"]]  # files have to have merges
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    write_projector(folder, files / f"mmproj-{kind}-f32.gguf", kind)
    text = folder.with_name(f"{folder.name}-text")
    shutil.copytree(folder, text)
    config = json.loads((folder / "config.json").read_text())
    (text / "config.json").write_text(json.dumps(config["text_config"] | {"architectures": [pair.text]}))
    tensors = {name.replace(pair.root, "model."): value for name, value in tensors_of(folder)}
    text_alone = ("model.layers.", "model.embed_tokens.", "model.norm.", "lm_head.")
    save_file(
        {name: value for name, value in tensors.items() if name.startswith(text_alone)}, text / "model.safetensors"
    )
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_chat_template(template)

    write_gguf(text, files / f"{kind}-f32.gguf", change=add)
    return folder, files / f"{kind}-f32.gguf"


def _started(output: Path, kind: str, changes: dict[str, Any]) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(output, "clip")
    writer.add_string("clip.projector_type", kind)
    for name, value in (FACTS | changes).items():
        key = f"clip.{name}"
        match value:
            case None:
                continue
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case _:
                writer.add_array(key, value)
    return writer


def _finish(writer: gguf.GGUFWriter) -> None:
    if not any(writer.tensors):
        writer.add_tensor("v.none", np.zeros(1, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
