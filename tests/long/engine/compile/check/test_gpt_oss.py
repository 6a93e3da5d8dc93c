"""gpt-oss whole, as published with experts of MXFP4 and as a GGUF file, against transformers with the same weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from transformers import GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from engine.bundle.manifest import Manifest
from engine.compile.arguments import CompileArguments, KvType, Layout, Quant, Target, default_quant
from engine.compile.check.parity import bundle_logits
from engine.compile.quantisation.choose.matrices import codes_told
from engine.compile.sources.experts import ExpertTensors
from engine.compile.sources.source import open_source
from engine.config import EngineConfig
from engine.errors import CompileError
from engine.models.family import read_network
from engine.worker.assembly import assemble
from tests.engine.compile.check.test_windows_served import answer
from tests.engine.compile.sources.gguf.gguf_files import F32, Floats, write_gguf

Build = Callable[..., tuple[Path, Manifest]]
Oracle = tuple[GptOssForCausalLM, Path]
MXFP4 = GGMLQuantizationType.MXFP4
CONFIG: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 16,
    "intermediate_size": 96,
    "sliding_window": 16,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "pad_token_id": 0,
    "rope_parameters": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "truncate": False,
        "rope_theta": 150_000.0,
    },
}
NEW = 60
EXPERTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")


@pytest.fixture
def published(make_oracle: Callable[..., tuple[Any, Path]], tmp_path: Path) -> Oracle:
    """The model with weights that codes can tell, and a folder of them in the layout of the release."""
    model, floats = make_oracle("GptOss", **CONFIG)
    tensors: dict[str, torch.Tensor] = load_file(floats / "model.safetensors")
    chance, meant = torch.Generator().manual_seed(5), {}
    for name in [name for name in tensors if name.endswith(EXPERTS)]:
        count, inputs, outputs = tensors.pop(name).shape
        shape = (count, outputs, inputs // 32)
        blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=chance)
        scales = torch.randint(123, 127, shape, dtype=torch.uint8, generator=chance)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        meant[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    model.load_state_dict(meant, strict=False)
    config = json.loads((floats / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (floats / "config.json").write_text(json.dumps(config))
    save_file(tensors, floats / "model.safetensors")
    return model, floats


def written_text(model: GptOssForCausalLM, prompt: list[int]) -> tuple[list[int], Floats]:
    """Greedy, past the window and the original context, and its logits."""
    text = model.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, eos_token_id=None)[0].tolist()
    with torch.no_grad():
        return text, model(torch.tensor([text]), use_cache=False).logits[0].numpy()


def as_gguf(model: GptOssForCausalLM, folder: Path, output: Path) -> Path:
    """As the converter writes it: gate and up apart, biases and sinks under names of modules."""
    source = output.parent / "apart"
    source.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (source / name).write_text((folder / name).read_text())
    tensors = {}
    for name, value in model.state_dict().items():
        if name.endswith("sinks"):
            tensors[f"{name}.weight"] = value
        elif "down_proj" in name:
            is_bias = name.endswith("_bias")
            module = name.removesuffix("_bias")
            tensors[f"{module}.{'bias' if is_bias else 'weight'}"] = value if is_bias else value.transpose(1, 2)
        elif "gate_up_proj" in name:
            is_bias = name.endswith("_bias")
            for part, start in (("gate_proj", 0), ("up_proj", 1)):
                module = name.removesuffix("_bias").replace("gate_up_proj", part)
                half = value[..., start::2]
                tensors[f"{module}.{'bias' if is_bias else 'weight'}"] = half if is_bias else half.transpose(1, 2)
        else:
            tensors[name] = value
    save_file({name: value.contiguous() for name, value in tensors.items()}, source / "model.safetensors")
    size = CONFIG["intermediate_size"]
    return write_gguf(
        source,
        output,
        lambda name: MXFP4 if "_exps.weight" in name else F32,
        change=lambda writer: writer.add_expert_feed_forward_length(size),
    )


@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_logits_and_tokens(form: str, published: Oracle, build: Build, prompt: list[int], tmp_path: Path) -> None:
    """In floats those of transformers, of graphs in steps and of a worker."""
    model, source = published
    text, expected = written_text(model, prompt)
    if form == "gguf":
        source = as_gguf(model, source, tmp_path / "m.gguf")
    folder, manifest = build(source, quant=Quant.FP32, layout=Layout.SEGMENTS)
    assert manifest.model.family == "gpt_oss"
    assert manifest.model.parameters == sum(each.numel() for each in model.parameters())
    measured = bundle_logits(folder, manifest, [text], rows=24)
    assert np.abs(measured - expected).max() / np.abs(expected).max() < 1e-4
    assert measured.argmax(axis=1)[len(prompt) - 1 : -1].tolist() == text[len(prompt) :]
    if form == "folder":
        served = assemble(EngineConfig(str(folder), threads=1, max_rows=24, spin="off"))
        assert answer(served, "a", prompt)[:NEW] == text[len(prompt) :]


@pytest.mark.parametrize("form", ["folder", "gguf"])
def test_codes_are_carried_over(form: str, published: Oracle, build: Build, tmp_path: Path) -> None:
    """As 8-bit codes of the very same values, which is the default; activations alone are rounded."""
    model, source = published
    if form == "gguf":
        source = as_gguf(model, source, tmp_path / "m.gguf")
    assert default_quant(Target.CPU, source) is Quant.KEEP
    found = open_source(source)
    stack = {name: value.numpy() for name, value in model.state_dict().items() if name.endswith(EXPERTS)}
    with found.tensors() as tensors:
        for layer in range(4):
            experts = ExpertTensors(tensors, read_network(found.config), layer)
            gate_up, down = (stack[f"model.layers.{layer}.{name}"] for name in EXPERTS)
            pieces = (*experts.kept_gate_up(5), experts.kept_down(5))
            wanted: tuple[NDArray[np.float32], ...] = (gate_up[5, :, ::2].T, gate_up[5, :, 1::2].T, down[5].T)
            for piece, values in zip(pieces, wanted, strict=True):
                assert not isinstance(piece, np.ndarray), "blocks are kept"
                assert np.array_equal(piece.floats(), values)
        arguments = CompileArguments(source, tmp_path / "bundle", quant=Quant.KEEP)
        if form == "folder":  # 4 layers with two matrices of floats and 6 experts
            told = codes_told("mxfp4", tensors, read_network(found.config), arguments)
            assert told.startswith("weights come as mxfp4: 48 of 56 matrices keep their codes; the others")
    _, manifest = build(source, quant=Quant.KEEP, layout=Layout.SEGMENTS)
    assert manifest.parity["kl"] < 0.02


def test_int8_caches(published: Oracle, build: Build, prompt: list[int]) -> None:
    """Of few rows and of many. All experts are chosen, because rounding would choose others."""
    folder = published[1]
    config = json.loads((folder / "config.json").read_text()) | {"num_experts_per_tok": 6}
    (folder / "config.json").write_text(json.dumps(config))
    exact, rounded = (
        bundle_logits(*build(folder, quant=Quant.FP32, layout=Layout.SEGMENTS, kv=kv, name=kv.value), [prompt * 3], 24)
        for kv in (KvType.FLOAT32, KvType.INT8)
    )
    assert 0 < np.square(rounded - exact).mean() < 0.01 * np.square(exact).mean()


def test_shapes_that_do_not_go_together(published: Oracle) -> None:
    _, folder = published
    tensors: dict[str, torch.Tensor] = load_file(folder / "model.safetensors")
    scales = f"model.layers.0.{EXPERTS[0]}_scales"
    tensors[scales] = tensors[scales][:, :-1].contiguous()
    save_file(tensors, folder / "model.safetensors")
    found = open_source(folder)
    with found.tensors() as opened, pytest.raises(CompileError, match=r"gate_up_proj_blocks and .* have shapes"):
        ExpertTensors(opened, read_network(found.config), 0).gate_up(0)
