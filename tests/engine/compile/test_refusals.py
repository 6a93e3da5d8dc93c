"""What the compiler refuses, and what it says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from engine.bundle.manifest import Manifest
from engine.compile.arguments import Quant
from engine.compile.random_checkpoint import SHAPES, write_checkpoint
from engine.errors import CompileError

Build = Callable[..., tuple[Path, Manifest]]
Damage = Callable[[Path], None]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A checkpoint of its own, to be damaged."""
    folder = tmp_path / "source"
    write_checkpoint(folder, SHAPES["tiny"])
    return folder


def edit_config(**changes: object) -> Damage:
    def damage(folder: Path) -> None:
        values = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(values))

    return damage


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def write(name: str, text: str) -> Damage:
    return lambda folder: (folder / name).write_text(text) and None


def edit_tensors(change: Callable[[dict[str, Any]], None]) -> Damage:
    def damage(folder: Path) -> None:
        file = next(folder.glob("model-*.safetensors"))
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file)
        index = json.loads((folder / INDEX).read_text())
        index["weight_map"] = dict.fromkeys({**index["weight_map"], **tensors}, file.name)
        (folder / INDEX).write_text(json.dumps(index))

    return damage


def to_int(tensors: dict[str, Any]) -> None:
    tensors["model.norm.weight"] = np.ones(64, np.int32)


def add_bias(tensors: dict[str, Any]) -> None:
    tensors["model.layers.0.mlp.down_proj.bias"] = np.ones(64, np.float32)


def drop_norm(tensors: dict[str, Any]) -> None:
    del tensors["model.norm.weight"]


INDEX = "model.safetensors.index.json"
NORM = "model.norm.weight"
DAMAGES: dict[str, tuple[Damage, str]] = {
    "no config": (remove("config.json"), "config.json is missing"),
    "config is no JSON": (write("config.json", "{"), "config.json cannot be read"),
    "config is a list": (write("config.json", "[]"), "must hold a JSON object"),
    "no tokenizer": (remove("tokenizer.json"), "has no tokenizer.json"),
    "damaged tokenizer": (write("tokenizer.json", "{}"), "is not a tokenizer"),
    "tokenizer larger than the table": (edit_config(vocab_size=100), "token id 383, config.json says vocab_size 100"),
    "no weights": (remove(INDEX), "only safetensors can be read"),
    "index without a map": (write(INDEX, "{}"), "no weight_map"),
    "index outside the folder": (write(INDEX, '{"weight_map": {"a": "../x.safetensors"}}'), "not a safetensors file"),
    "shard missing": (remove("model-00000.safetensors"), "cannot be opened"),
    "shard damaged": (write("model-00000.safetensors", "no tensors here"), "cannot be opened"),
    "tensor missing": (edit_tensors(drop_norm), NORM),
    "tensor of another shape": (edit_tensors(lambda t: t.update({NORM: t[NORM][:32]})), r"shape \(32,\)"),
    "tensor of integers": (edit_tensors(to_int), "type I32"),
    "tensor that nothing uses": (edit_tensors(add_bias), "tensor model.layers.0.mlp.down_proj.bias"),
    "more layers than weights": (edit_config(num_hidden_layers=3), "model.layers.2"),
    "head missing": (edit_config(tie_word_embeddings=False), "no tensor lm_head.weight"),
    "eos is text": (edit_config(eos_token_id="x"), "eos_token_id"),
    "template is a number": (write("tokenizer_config.json", '{"chat_template": 3}'), "chat_template"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_damaged_checkpoints(case: str, source: Path, build: Build, tmp_path: Path) -> None:
    """One sentence that names the file or the tensor, and nothing at the output."""
    damage, message = DAMAGES[case]
    damage(source)
    with pytest.raises(CompileError, match=message):
        build(source)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_four_bit_table_needs_whole_blocks(make_oracle: Callable[..., Any], build: Build) -> None:
    """The operator has no padding."""
    _, source = make_oracle("Llama", hidden_size=72)
    with pytest.raises(CompileError, match="--embedding 4"):
        build(source, quant=Quant.INT4, embedding_bits=4)
