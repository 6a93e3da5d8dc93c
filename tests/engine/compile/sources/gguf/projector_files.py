"""Files that read images for a GGUF model, as llama.cpp's converter writes them for SmolVLM, and only their facts."""

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import save_file

from tests.engine.compile.sources.gguf.gguf_files import tensors_of, write_gguf
from tests.vision_models import write_idefics3

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


def write_projector(source: Path, output: Path, **changes: Any) -> Path:
    """The encoder of a SmolVLM folder."""
    layers = json.loads((source / "config.json").read_text())["vision_config"]["num_hidden_layers"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.MMPROJ, layers)
    writer = _started(output, "idefics3", {name.replace("__", "."): value for name, value in changes.items()})
    for name, value in tensors_of(source):
        if not name.startswith(("model.text_model.", "lm_head.")):
            written = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert written is not None, name
            writer.add_tensor(written, value)
    _finish(writer)
    return output


def write_pair(folder: Path, files: Path) -> tuple[Path, Path]:
    """A folder of SmolVLM, and the same as two GGUF files; `folder` and the first of these."""
    write_idefics3(folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["th"], tokenizer["model"]["merges"] = 300, [["t", "h"]]  # files have to have merges
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    write_projector(folder, files / "mmproj-smolvlm-f32.gguf")
    text = folder.with_name(f"{folder.name}-text")
    shutil.copytree(folder, text)
    config = json.loads((folder / "config.json").read_text())
    (text / "config.json").write_text(json.dumps(config["text_config"] | {"architectures": ["LlamaForCausalLM"]}))
    tensors = {name.replace("model.text_model.", "model."): value for name, value in tensors_of(folder)}
    save_file(
        {name: value for name, value in tensors.items() if "vision" not in name and "connector" not in name},
        text / "model.safetensors",
    )
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]

    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_chat_template(template)

    write_gguf(text, files / "smolvlm-f32.gguf", change=add)
    return folder, files / "smolvlm-f32.gguf"


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
