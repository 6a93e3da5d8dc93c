"""Gated DeltaNet layers against transformers: the graphs, the float reference, and what is refused."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.bundle.manifest import Manifest, load_manifest
from engine.compile.arguments import KvType, Layout, Quant, Target
from engine.compile.calibration.forward import reference_logits
from engine.compile.check.parity import bundle_logits
from engine.compile.sources.checkpoint import SafetensorsCheckpoint
from engine.errors import CompileError, UnsupportedModel
from engine.models.family import read_network
from tests.engine.compile.check.test_families import YARN
from tests.engine.compile.conftest import check_greedy_text
from tests.hybrid import Hybrid, make_hybrid, oracle_logits, text_of

TEXT = text_of(150)
ROPE = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
Build = Callable[..., tuple[Path, Manifest]]


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("rows", [150, 64, 7, 1])
def test_logits_are_those_of_transformers_however_a_text_is_cut(hybrid: Hybrid, rows: int) -> None:
    manifest = load_manifest(hybrid.bundle)
    found = bundle_logits(hybrid.bundle, manifest, [list(TEXT)], rows)
    expected = hybrid.logits(TEXT)
    assert relative_error(found, expected) < 1e-4
    assert (found.argmax(axis=1) == expected.argmax(axis=1)).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"linear_num_key_heads": 4},
        {"linear_num_value_heads": 2, "linear_conv_kernel_dim": 2},
        {"layer_types": ["linear_attention", "full_attention"] * 2, "num_hidden_layers": 4},
        {"layer_types": ["full_attention", "linear_attention", "full_attention"], "num_hidden_layers": 3},
        {"layer_types": ["full_attention", "linear_attention"] * 2, "num_hidden_layers": 4},
        {"attention_bias": True, "tie_word_embeddings": False, "num_hidden_layers": 4},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.5}},
    ],
    ids=[
        "equal-heads",
        "kernel-2",
        "every-second",
        "attention-first",
        "attention-before-each",
        "bias-own-head",
        "half-rotary",
    ],
)
def test_other_geometries(changes: dict[str, Any], tmp_path: Path, build: Build) -> None:
    source = tmp_path / "checkpoint"
    model = make_hybrid(source, **changes)
    folder, manifest = build(source, quant=Quant.FP32, layout=None, parity_tokens=8)
    expected = oracle_logits(model, list(TEXT[:50]))
    assert relative_error(bundle_logits(folder, manifest, [list(TEXT[:50])], 20), expected) < 1e-4


EXPERTS = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 96,
    "num_hidden_layers": 4,
}


@pytest.mark.parametrize("family", ["Qwen3_5", "Qwen3_5Moe"])
def test_greedy_text_past_the_original_context(family: str, tmp_path: Path, build: Build) -> None:
    """Without and with experts, by YaRN."""
    yarn = YARN | {"partial_rotary_factor": 0.25}
    model = make_hybrid(tmp_path / "checkpoint", family=family, rope_parameters=yarn, **EXPERTS)
    manifest = check_greedy_text(model, tmp_path / "checkpoint", build, list(TEXT[:50]))
    assert manifest.model.family == ("qwen3_5" if family == "Qwen3_5" else "qwen3_5_moe")


def test_the_float_reference_is_transformers(hybrid: Hybrid) -> None:
    network = read_network(json.loads((hybrid.source / "config.json").read_text()))
    with SafetensorsCheckpoint(hybrid.source) as checkpoint:
        found = reference_logits(checkpoint, network, np.array(TEXT))
    assert relative_error(found, hybrid.logits(TEXT)) < 1e-4


def test_the_text_model_of_a_checkpoint_for_images_is_the_same(hybrid: Hybrid, tmp_path: Path, build: Build) -> None:
    """Its config is nested, its tensors have longer names, and what looks at images or drafts tokens is left out."""
    from safetensors.numpy import load_file, save_file

    source = tmp_path / "checkpoint"
    source.mkdir()
    for path in hybrid.source.iterdir():
        (source / path.name).write_bytes(path.read_bytes())
    text = json.loads((source / "config.json").read_text())
    outer = {"architectures": ["Qwen3_5ForConditionalGeneration"], "tie_word_embeddings": True, "text_config": text}
    (source / "config.json").write_text(json.dumps(outer))
    tensors = load_file(source / "model.safetensors")
    renamed = {re.sub(r"^model\.", "model.language_model.", name): value for name, value in tensors.items()}
    others = {"model.visual.merger.weight": np.ones((2, 2), np.float32), "mtp.norm.weight": np.ones(2, np.float32)}
    save_file(renamed | others, source / "model.safetensors")
    folder, manifest = build(source, quant=Quant.FP32, layout=None, parity_tokens=8)
    expected = bundle_logits(hybrid.bundle, load_manifest(hybrid.bundle), [list(TEXT)], 64)
    assert (bundle_logits(folder, manifest, [list(TEXT)], 64) == expected).all()


def test_decays_are_never_rounded(int4_hybrid: Hybrid) -> None:
    manifest = load_manifest(int4_hybrid.bundle)
    assert manifest.quant == "int4"
    assert manifest.parity["top1"] > 0.8
    stored = (int4_hybrid.bundle / "shared.data").read_bytes()
    with SafetensorsCheckpoint(int4_hybrid.source) as checkpoint:
        name = "model.layers.4.linear_attn.{}"
        rate = -np.exp(checkpoint.tensor(name.format("A_log"), (4,)))
        steps = [checkpoint.tensor(f"{name.format(part)}.weight", (4, 64)) for part in ("in_proj_b", "in_proj_a")]
    assert rate.tobytes() in stored
    assert np.ascontiguousarray(np.concatenate(steps).T).tobytes() in stored


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": Layout.POOL}, r"recurrent layers \(qwen3_5\) need --layout segments"),
        ({"rows": (1, 8), "context": (64,)}, r"recurrent layers \(qwen3_5\) need --layout segments"),
        ({"quant": Quant.W4, "target": Target.X_ELITE, "rows": (8,), "context": (64,)}, "run on the CPU only"),
        ({"quant": Quant.W8A16, "rows": (8,), "context": (64,)}, "need --layout segments"),
        ({"lora": True}, r"--lora is refused: adapters of recurrent layers \(qwen3_5\)"),
    ],
)
def test_what_a_state_cannot_do_is_refused_by_name(
    hybrid: Hybrid, build: Build, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(CompileError, match=message):
        build(hybrid.source, **({"layout": None} | options))


@pytest.mark.parametrize("kv", [KvType.FLOAT16, KvType.INT8])
def test_rounded_caches_beside_states_lose_little(hybrid: Hybrid, build: Build, kv: KvType) -> None:
    _, manifest = build(hybrid.source, layout=Layout.SEGMENTS, quant=Quant.FP32, kv=kv)
    assert manifest.kv_dtype == kv and manifest.parity["kv_kl"] < (1e-6 if kv is KvType.FLOAT16 else 1e-3)


def test_a_head_size_that_segments_cannot_have(tmp_path: Path, build: Build) -> None:
    make_hybrid(tmp_path / "checkpoint", head_dim=20, num_hidden_layers=4, rope_parameters=ROPE)
    with pytest.raises(CompileError, match=r"recurrent layers \(qwen3_5\) need a head size that 8 divides"):
        build(tmp_path / "checkpoint", layout=None)


def test_a_tensor_that_nobody_reads_is_still_refused(hybrid: Hybrid, tmp_path: Path, build: Build) -> None:
    from safetensors.numpy import load_file, save_file

    source = tmp_path / "checkpoint"
    source.mkdir()
    for path in hybrid.source.iterdir():
        (source / path.name).write_bytes(path.read_bytes())
    tensors = load_file(source / "model.safetensors")
    save_file(
        tensors | {"model.layers.0.linear_attn.conv1d.bias": np.ones(2, np.float32)}, source / "model.safetensors"
    )
    with pytest.raises(UnsupportedModel, match=r"conv1d\.bias, which qwen3_5 does not use"):
        build(source, layout=None)
    # Programs that write GPTQ give every matrix a bias of zeros.
    save_file(tensors | {"model.layers.0.mlp.down_proj.bias": np.zeros(64, np.float32)}, source / "model.safetensors")
    build(source, layout=None)
