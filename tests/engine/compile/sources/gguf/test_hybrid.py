"""GGUF files of Qwen3.5: the values of the checkpoint, however its heads were re-ordered, and its tokens and logits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType

from engine.bundle.manifest import Manifest
from engine.compile.arguments import Quant
from engine.compile.check.parity import bundle_logits
from engine.compile.quantisation.methods.integer_blocks import int8_blocks
from engine.compile.sources.checkpoint import SafetensorsCheckpoint
from engine.compile.sources.gguf.file import GgufSource
from engine.errors import CompileError, UnsupportedModel
from tests.engine.compile.conftest import check_greedy_text
from tests.engine.compile.sources.gguf.gguf_files import F32, write_gguf
from tests.engine.compile.sources.gguf.test_file import facts
from tests.hybrid import Hybrid, make_hybrid, oracle_logits, text_of

Build = Callable[..., tuple[Path, Manifest]]
TEXT = text_of(40)
SHORT = {"num_hidden_layers": 4}
Q8_0 = GGMLQuantizationType.Q8_0
OUTPUT = "model.layers.0.linear_attn.out_proj.weight"


def exact(checkpoint: Path, file: Path) -> None:
    """Every tensor of the folder is in the file, and nothing else is."""
    with SafetensorsCheckpoint(checkpoint) as expected, GgufSource(file).tensors() as found:
        for name in expected.unused():
            shape = expected.shape(name)
            wanted, values = expected.tensor(name, shape), found.tensor(name, shape)
            if name.endswith(("norm.weight", "A_log")):
                assert np.allclose(values, wanted, rtol=1e-6, atol=1e-6), name
            else:
                assert np.array_equal(values, wanted), name
            if len(shape) == 2:  # from the middle of one head to that of another
                assert np.array_equal(found.rows(name, 1, shape[0] - 1), wanted[1:-1]), name
        assert found.unused() == []


@pytest.mark.parametrize(
    "changes",
    [
        SHORT,
        SHORT | {"linear_num_key_heads": 1},
        SHORT | {"linear_num_key_heads": 4},
        SHORT | {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_conv_kernel_dim": 2},
        SHORT | {"attention_bias": True, "tie_word_embeddings": False},
    ],
    ids=["twice", "one-key-head", "equal-heads", "three-times", "bias-own-head"],
)
def test_values_are_those_of_the_checkpoint(changes: dict[str, Any], tmp_path: Path) -> None:
    make_hybrid(tmp_path / "checkpoint", **changes)
    exact(tmp_path / "checkpoint", write_gguf(tmp_path / "checkpoint", tmp_path / "m.gguf"))


def test_greedy_tokens_and_logits_are_those_of_the_checkpoint(hybrid: Hybrid, tmp_path: Path, build: Build) -> None:
    """Eight layers, four value heads on two key heads, and values of another size than keys."""
    path = write_gguf(hybrid.source, tmp_path / "m.gguf", pre="qwen35")
    folder, manifest = build(path, quant=Quant.FP32, layout=None, parity_tokens=8)
    assert manifest.model.family == "qwen3_5"
    text = [*TEXT, *hybrid.greedy(TEXT, 8)]
    found, expected = bundle_logits(folder, manifest, [text], 20), hybrid.logits(text)
    assert [int(token) for token in found.argmax(axis=1)[len(TEXT) - 1 : -1]] == text[len(TEXT) :]
    assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-4


def test_with_experts(tmp_path: Path, build: Build) -> None:
    """Qwen3.5-MoE, some of whose files have no size of a dense feed-forward."""
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    model = make_hybrid(
        tmp_path / "checkpoint", family="Qwen3_5Moe", shared_expert_intermediate_size=32, **experts, **SHORT
    )
    config = tmp_path / "checkpoint" / "config.json"
    told = json.loads(config.read_text())
    config.write_text(json.dumps({key: value for key, value in told.items() if key != "intermediate_size"}))
    path = write_gguf(tmp_path / "checkpoint", tmp_path / "m.gguf")
    assert check_greedy_text(model, path, build, list(TEXT)).model.family == "qwen3_5_moe"


def drafting(writer: gguf.GGUFWriter) -> None:
    """A layer behind the others that guesses tokens."""
    for name in ("attn_q.weight", "attn_norm.weight", "nextn.eh_proj.weight", "nextn.enorm.weight"):
        writer.add_tensor(f"blk.3.{name}", np.ones((8, 8), np.float32))
    writer.add_array("qwen35.attention.recurrent_layers", [True, True, False, False])


def test_layers_that_are_listed_and_layers_that_draft(tmp_path: Path, build: Build) -> None:
    kinds = ["linear_attention", "linear_attention", "full_attention"]
    changes: dict[str, Any] = {"num_hidden_layers": 3, "layer_types": kinds, "mtp_num_hidden_layers": 1}
    model = make_hybrid(tmp_path / "checkpoint", **changes)
    path = write_gguf(tmp_path / "checkpoint", tmp_path / "m.gguf", change=drafting)
    folder, manifest = build(path, quant=Quant.FP32, layout=None, parity_tokens=8)
    assert (manifest.model.layers, manifest.model.attention_layers) == (3, (2,))
    found, expected = bundle_logits(folder, manifest, [list(TEXT)], 40), oracle_logits(model, list(TEXT))
    assert np.abs(found - expected).max() / np.abs(expected).max() < 1e-4


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0"])
def test_blocks_move_with_their_heads(name: str, tmp_path: Path) -> None:
    """Heads of 64 inputs are two blocks, heads of 48 are no whole ones."""
    for size in (64, 48):
        checkpoint, kind = tmp_path / f"checkpoint-{size}", GGMLQuantizationType[name]
        make_hybrid(checkpoint, linear_value_head_dim=size, **SHORT)
        path = write_gguf(checkpoint, tmp_path / f"{size}.gguf", lambda each, k=kind: k if "ssm_out" in each else F32)
        with GgufSource(path).tensors() as tensors, SafetensorsCheckpoint(checkpoint) as floats:
            blocks, rows = tensors.blocks(OUTPUT, 3, 9), tensors.rows(OUTPUT, 3, 9)
            assert np.abs(rows - floats.rows(OUTPUT, 3, 9)).max() < 0.15
            form = tensors.form(OUTPUT)
            assert (None if form is None else form.bits) == (None if blocks is None else blocks.bits)
        if size == 48:
            assert blocks is None
            continue
        assert blocks is not None
        is_exact = blocks.offsets is None
        assert np.allclose(int8_blocks(blocks, rows.shape[1]).floats(), rows, atol=0 if is_exact else 0.02)


def test_kept_blocks_say_what_the_file_says(tmp_path: Path, build: Build) -> None:
    """As such files are compiled by default, against the floats that they stand for."""
    make_hybrid(tmp_path / "checkpoint", gain=0.4, linear_value_head_dim=32, intermediate_size=128, **SHORT)
    path = write_gguf(tmp_path / "checkpoint", tmp_path / "m.gguf", lambda name: F32 if "conv" in name else Q8_0)
    _, manifest = build(path, quant=Quant.KEEP, layout=None, parity_tokens=100)
    assert manifest.parity["kl"] < 0.01


SIZES: dict[str, object] = {
    "ssm.conv_kernel": 4,
    "ssm.state_size": 16,
    "ssm.group_count": 2,
    "ssm.time_step_rank": 4,
    "ssm.inner_size": 96,
    "block_count": 4,
}
REFUSED: dict[str, tuple[dict[str, object], str]] = {
    "no kernel": ({"ssm.conv_kernel": None}, r"qwen35\.ssm\.conv_kernel is missing"),
    "no state": ({"ssm.state_size": None}, r"qwen35\.ssm\.state_size is missing"),
    "no key heads": ({"ssm.group_count": None}, r"qwen35\.ssm\.group_count is missing"),
    "no value heads": ({"ssm.time_step_rank": None}, r"qwen35\.ssm\.time_step_rank is missing"),
    "no width": ({"ssm.inner_size": None}, r"qwen35\.ssm\.inner_size is missing"),
    "a width of no whole heads": (
        {"ssm.inner_size": 97},
        r"inner_size must be qwen35\.ssm\.time_step_rank \(4\) times",
    ),
    "a long kernel": ({"ssm.conv_kernel": 1 << 30}, "conv_kernel must be an integer from 2 to 64"),
    "heads that do not share": ({"ssm.group_count": 3}, "4 value heads are no multiple of 3 key heads"),
    "no attention": ({"full_attention_interval": 8}, "no layer has attention"),
    "attention only": ({"full_attention_interval": 1}, "no layer is recurrent"),
    "all draft": ({"nextn_predict_layers": 4}, "nextn_predict_layers must be an integer from 0 to 3"),
    "few kinds": ({"attention.recurrent_layers": [True] * 3}, "recurrent_layers must be 4 integers from 0 to 1"),
    "other kinds": ({"attention.recurrent_layers": [1, 2, 3, 4]}, "recurrent_layers must be 4 integers from 0 to 1"),
    "one kind": ({"attention.recurrent_layers": "all"}, "recurrent_layers must be an integer from 0 to 1, it is 'all'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_facts_that_are_refused(case: str, tmp_path: Path) -> None:
    changes, reason = REFUSED[case]
    with pytest.raises(CompileError, match=reason) as caught:
        GgufSource(facts(tmp_path / "m.gguf", "qwen35", **(SIZES | changes)))
    assert str(caught.value).startswith("m.gguf")
    assert "\n" not in str(caught.value)


def test_tensors_that_are_refused(tmp_path: Path, build: Build) -> None:
    """A decay that would grow, and a tensor that the network lacks."""
    make_hybrid(tmp_path / "checkpoint", **SHORT)

    def growing(rows: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
        return np.abs(rows)

    path = write_gguf(tmp_path / "checkpoint", tmp_path / "m.gguf", quantize=growing)
    with pytest.raises(CompileError, match=r"m\.gguf: tensor blk\.0\.ssm_a holds numbers that are not negative"):
        build(path, quant=Quant.FP32, layout=None)
    path = write_gguf(
        tmp_path / "checkpoint",
        tmp_path / "n.gguf",
        change=lambda writer: writer.add_tensor("blk.4.nextn.eh_proj.weight", np.ones((8, 8), np.float32)),
    )
    with pytest.raises(UnsupportedModel, match=r"tensor blk\.4\.nextn\.eh_proj\.weight, which qwen3_5 does not use"):
        build(path, quant=Quant.FP32, layout=None)
