"""What the compiler refuses, and what it says."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from engine.bundle.manifest import Manifest
from engine.bundle.model_spec import LayerAttention
from engine.compile.arguments import CompileArguments, Layout, QualityLevel, Quant, Target
from engine.compile.plan import check_layers, check_recurrent
from engine.errors import CompileError
from engine.models.family import read_network
from tests.engine.models.test_falcon_h1 import SMALLEST
from tests.engine.models.test_nemotron_h import NANO
from tools.random_checkpoint import SHAPES, write_checkpoint

EXPERTS: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
INDEX = "model.safetensors.index.json"
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


def write_bytes(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content) and None


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


def fill(value: float) -> Callable[[dict[str, Any]], None]:
    return lambda tensors: tensors.update({NORM: np.full(64, value, np.float32)})


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "model.safetensors.index.json",
        "model-00000.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ],
)
def test_pipes_are_refused_without_waiting(name: str, source: Path, build: Build) -> None:
    (source / name).unlink()
    os.mkfifo(source / name)
    with pytest.raises(CompileError, match=f"{name}.*: it is a named pipe, not a regular file"):
        build(source)


NORM = "model.norm.weight"
EMBEDDING = "model.embed_tokens.weight"
DAMAGES: dict[str, tuple[Damage, str]] = {
    "no config": (remove("config.json"), "config.json is missing"),
    "config is no JSON": (write("config.json", "{"), "config.json cannot be read"),
    "config is a list": (write("config.json", "[]"), "must hold a JSON object"),
    "no tokenizer": (remove("tokenizer.json"), "has no tokenizer.json"),
    "damaged tokenizer": (write("tokenizer.json", "{}"), "is not a tokenizer"),
    "tokenizer larger than the table": (edit_config(vocab_size=100), "token id 380, config.json says vocab_size 100"),
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
    "a weight that is not finite": (edit_tensors(fill(np.nan)), f"tensor {NORM} holds numbers that are not finite"),
    "a reference that overflows": (edit_tensors(fill(3e38)), "the checkpoint itself gives logits that are not finite"),
    "architecture is a list": (edit_config(architectures=[["Qwen3ForCausalLM"]]), "architecture .* is not supported"),
    "a number without end": (edit_config(rms_norm_eps=10**400), r"rms_norm_eps must be a number from .* of 1329 bits"),
    "config is nested deeply": (write("config.json", "[" * 100_000), "config.json cannot be read: it is nested too"),
    "half a character": (write("tokenizer_config.json", '{"chat_template": "\\ud800"}'), "a lone surrogate"),
    "template is no UTF-8": (write_bytes("chat_template.jinja", b"\xff"), "it is not UTF-8"),
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


def test_a_list_of_templates_without_a_default_is_no_template(source: Path, build: Build) -> None:
    write("tokenizer_config.json", '{"chat_template": [{"name": ["default"], "template": "x"}, 3]}')(source)
    assert build(source)[1].text.chat_template is None


def test_weights_too_large_for_their_type(source: Path, build: Build) -> None:
    edit_tensors(lambda tensors: tensors.update({EMBEDDING: np.full((384, 64), 1e6, np.float32)}))(source)
    with pytest.raises(CompileError, match="the checkpoint has weights too large to be stored as int4"):
        build(source)


ON_NPU = {"quant": Quant.W4, "target": Target.X_ELITE, "rows": (1,), "context": (64,)}
FUSED = {"layout": Layout.FUSED, "quant": Quant.W8A16, "rows": (32,), "context": (512,)}


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        (
            {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32},
            FUSED,
            r"a window of 32 tokens \(qwen3\) needs --layout pool, or a context of at most 32",
        ),
        (
            {"architectures": ["GemmaForCausalLM"], "hidden_act": None},
            FUSED,
            r"a feed-forward with GELU \(gemma\) needs --layout pool",
        ),
        (
            EXPERTS,
            ON_NPU,
            r"experts \(qwen3_moe\) needs --target cpu with --layout segments",
        ),
        (
            {"architectures": ["Ernie4_5ForCausalLM"]},
            ON_NPU,
            r"a rotation of neighbours \(ernie4_5\) needs --target cpu with --layout segments",
        ),
        (
            {"architectures": ["Glm4ForCausalLM"]},
            ON_NPU,
            r"a rotation of neighbours \(glm4\) needs --target cpu with --layout segments",
        ),
        (
            EXPERTS | {"architectures": ["GptOssForCausalLM"], "sliding_window": 32},
            ON_NPU,
            r"sinks of heads \(gpt_oss\) needs --target cpu with --layout segments, or a context of at most 32",
        ),
        (EXPERTS, {"lora": True, "layout": Layout.SEGMENTS}, r"--lora is refused: adapters of layers with experts"),
        (EXPERTS, {"quality": QualityLevel.GOOD}, r"--quality good does not know layers with experts \(qwen3_moe\)"),
    ],
)
def test_layers_that_pools_lack_are_named(
    changes: dict[str, Any], options: dict[str, Any], message: str, source: Path, build: Build
) -> None:
    edit_config(**changes)(source)
    with pytest.raises(CompileError, match=message):
        build(source, **options)


def test_windows_of_several_sizes_are_named(source: Path) -> None:
    """No family has them yet; a pool has one number of columns for all."""
    network = read_network(json.loads((source / "config.json").read_text()))
    kinds = (LayerAttention(16), LayerAttention(32))
    network = replace(network, spec=msgspec.structs.replace(network.spec, attention=kinds))
    arguments = CompileArguments(source, source.parent / "bundle", Target.CPU, layout=Layout.POOL)
    message = r"windows of several sizes \(qwen3\) needs --target cpu with --layout segments, or .* at most 16"
    with pytest.raises(CompileError, match=message):
        check_layers(arguments, network)
    check_layers(replace(arguments, layout=Layout.SEGMENTS), network)


@pytest.mark.parametrize(("config", "family"), [(SMALLEST, "falcon_h1"), (NANO, "nemotron_h")])
def test_npu_graphs_have_no_state(config: dict[str, Any], family: str) -> None:
    arguments = CompileArguments(Path("model"), Path("bundle"), Target.X_ELITE)
    with pytest.raises(CompileError, match=rf"--target x-elite: recurrent layers \({family}\) run on the CPU only"):
        check_recurrent(arguments, read_network(config))
