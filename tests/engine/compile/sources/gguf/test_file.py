"""A GGUF file compiled: the network of the checkpoint it was made of, whatever its tensors are stored as."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType
from safetensors.numpy import load_file, save_file

from engine.bundle.manifest import Manifest
from engine.compile.arguments import Layout, Quant
from engine.compile.quantisation.methods.blocks import floats_of
from engine.compile.sources import source
from engine.compile.sources.checkpoint import Checkpoint
from engine.compile.sources.experts import ExpertTensors
from engine.compile.sources.gguf.architectures import architecture_of
from engine.compile.sources.gguf.file import GgufSource, network_config
from engine.compile.sources.gguf.geometry import read_geometry
from engine.compile.sources.gguf.header import read_header
from engine.errors import CompileError, UnsupportedModel
from engine.models.family import read_network
from tests.engine.compile.check.test_families import (
    DEEPSEEK,
    EXAONE4,
    EXAONE4_LLAMA3,
    FALCON_H1,
    GEMMA3_LINEAR,
    GEMMA3N,
    GEMMA4_EXPERTS,
    GEMMA4_LARGE,
    GEMMA4_SMALL,
    GLM,
    GRANITE,
    GRANITE4,
    GRANITE_HYBRID,
    GRANITE_HYBRID_MOE,
    HUNYUAN_ALPHA,
    LATENT,
    LFM2,
    LFM2_MOE,
    LOCAL,
    NEMOTRON_H,
    NEMOTRON_H_MOE,
    OLMO3,
    OLMO3_OWN_BASE,
    OLMO3_YARN,
    YARN,
    unlike,
)
from tests.engine.compile.check.test_transformers_parity import (
    LINEAR,
    LLAMA3,
    PARTIAL_LONGROPE,
    greedy,
    oracle_logits,
)
from tests.engine.compile.conftest import check_greedy_text
from tests.engine.compile.sources.gguf.gguf_files import F32, write_gguf
from tests.plain_bundle import ChainedSequence

Made = tuple[Path, Manifest]

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-all-biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-own-head-dim": ("Llama", {"head_dim": 24}),
    "llama-one-kv-head": ("Llama", {"num_key_value_heads": 1}),
    "llama-linear": ("Llama", {"rope_parameters": LINEAR}),
    "llama-llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
}


@pytest.mark.parametrize("case", CASES)
def test_greedy_tokens_and_logits_are_those_of_the_checkpoint(
    case: str,
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Callable[..., Made],
    prompt: list[int],
    tmp_path: Path,
) -> None:
    family, changes = CASES[case]
    model, checkpoint = make_oracle(family, **changes)
    folder, manifest = build(write_gguf(checkpoint, tmp_path / "model.gguf"), quant=Quant.FP32)
    assert manifest.model.family == family.lower()
    text, measured = greedy(ChainedSequence.start(folder, manifest, None), prompt, 24)
    expected = oracle_logits(model, text[:-1])
    assert text[len(prompt) :] == [int(token) for token in expected.argmax(axis=1)[len(prompt) - 1 :]]
    assert np.abs(measured - expected).max() / np.abs(expected).max() < 1e-4


SCALED = {"rope_parameters": YARN}
GEMMA = {"head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 16, "pad_token_id": 0}
PHI = {"rope_parameters": PARTIAL_LONGROPE, "original_max_position_embeddings": 32, "pad_token_id": 0}
MOE = {"head_dim": 16, "moe_intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2}
ARCHITECTURE_OF = {"glm4-moe": "glm4moe", "glm4-flash": "deepseek2"}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("Mistral", {"sliding_window": 16, "head_dim": 16}),
    "qwen3-yarn": ("Qwen3", {"head_dim": 32} | SCALED),
    "ministral3": (
        "Ministral3",
        {"head_dim": 16, "rope_parameters": YARN | {"llama_4_scaling_beta": 0.5, "mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "ministral3-grown": ("Ministral3", {"head_dim": 16, "rope_parameters": YARN | {"llama_4_scaling_beta": 0.5}}),
    "phi3": ("Phi3", PHI),
    "qwen3moe": ("Qwen3Moe", MOE | {"norm_topk_prob": True} | SCALED),
    "qwen2moe": ("Qwen2Moe", MOE | {"shared_expert_intermediate_size": 96}),
    "glm4-moe": ("Glm4Moe", GLM | {"use_qk_norm": True}),
    "glm4-moe-plain": ("Glm4Moe", GLM | {"first_k_dense_replace": 2, "norm_topk_prob": False}),
    "ernie-moe": ("Ernie4_5_Moe", {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 32}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "sliding_window": None}),
    "olmoe": ("Olmoe", {"num_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 32}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4, "pad_token_id": 0} | SCALED),
    "granite": ("Granite", GRANITE),
    # The converter writes the size that `block_auto_adjust_ff_dim` would make of the config's.
    "lfm2": ("Lfm2", LFM2 | {"block_auto_adjust_ff_dim": False}),
    "lfm2-moe": ("Lfm2Moe", LFM2_MOE),
    "granite4": ("GraniteMoeHybrid", GRANITE4),
    "granite4-hybrid": ("GraniteMoeHybrid", GRANITE_HYBRID),
    "granite4-hybrid-moe": ("GraniteMoeHybrid", GRANITE_HYBRID_MOE),
    "falcon-h1": ("FalconH1", FALCON_H1 | {"mamba_n_groups": 1}),
    "falcon-h1-normed": ("FalconH1", FALCON_H1 | {"mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    "nemotron-h": ("NemotronH", NEMOTRON_H),
    "nemotron-h-moe": ("NemotronH", NEMOTRON_H_MOE | {"layers_block_type": NEMOTRON_H_MOE["layers_block_type"][:5]}),
    "granite-moe": ("GraniteMoe", GRANITE | LOCAL),
    "granite-moe-shared": ("GraniteMoeShared", GRANITE | LOCAL | {"shared_intermediate_size": 96}),
    "hunyuan": ("HunYuanDenseV1", {"head_dim": 16, "pad_token_id": 0}),
    "hunyuan-alpha": ("HunYuanDenseV1", HUNYUAN_ALPHA),
    "ernie": ("Ernie4_5", {"head_dim": 16, "pad_token_id": 0}),
    "olmo2": ("Olmo2", {"pad_token_id": 0}),
    "olmo3": ("Olmo3", OLMO3),
    "olmo3-another-base": ("Olmo3", OLMO3 | unlike({"rope_type": "default", "rope_theta": 20_000.0}, 20_000.0)),
    "olmo3-own-base": ("Olmo3", OLMO3_OWN_BASE),
    "olmo3-yarn": ("Olmo3", OLMO3_YARN),
    "exaone4": ("Exaone4", EXAONE4),
    "exaone4-llama3": ("Exaone4", EXAONE4_LLAMA3),
    "glm": ("Glm", {"head_dim": 16, "pad_token_id": 0}),
    "glm4": ("Glm4", {"head_dim": 16, "pad_token_id": 0}),
    "gemma": ("Gemma", {"head_dim": 16, "pad_token_id": 0}),
    "gemma2": ("Gemma2", GEMMA | {"attn_logit_softcapping": 5.0}),
    "gemma3": ("Gemma3", GEMMA | {"num_hidden_layers": 7}),
    "gemma3-linear": ("Gemma3", GEMMA | GEMMA3_LINEAR),
    "deepseek-v2": ("DeepseekV2", DEEPSEEK),
    "glm4-flash": ("Glm4MoeLite", LATENT | {"q_lora_rank": 24}),
    "gemma3n": ("Gemma3n", GEMMA3N),
    "gemma4-small": ("Gemma4", GEMMA4_SMALL),
    "gemma4-large": ("Gemma4", GEMMA4_LARGE),
    "gemma4-experts": ("Gemma4", GEMMA4_EXPERTS),
}


@pytest.mark.parametrize("case", FAMILIES)
def test_families_of_layers(
    case: str,
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Callable[..., Made],
    prompt: list[int],
    tmp_path: Path,
) -> None:
    """Of a greedy text of transformers, past windows and the original context."""
    family, changes = FAMILIES[case]
    model, checkpoint = make_oracle(family, **changes)
    check_greedy_text(model, write_gguf(checkpoint, tmp_path / "model.gguf"), build, prompt)


@pytest.mark.parametrize("case", ["glm4-moe", "glm4-flash"])
def test_layers_that_draft_are_left_out(
    case: str,
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Callable[..., Made],
    prompt: list[int],
    tmp_path: Path,
) -> None:
    """Files of GLM count them as blocks, folders number them behind the layers: both as published."""
    family, changes = FAMILIES[case]
    model, checkpoint = make_oracle(family, **changes)
    config = json.loads((checkpoint / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
    (checkpoint / "config.json").write_text(json.dumps(config))

    def draft(writer: gguf.GGUFWriter) -> None:
        if case == "glm4-flash":  # newer files tell
            writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        for name in ("attn_norm.weight", "attn_q_a.weight", "nextn.eh_proj.weight", "nextn.enorm.weight"):
            writer.add_tensor(f"blk.3.{name}", np.ones((8, 8), np.float32))

    path = write_gguf(checkpoint, tmp_path / "model.gguf", change=draft)
    assert read_header(path).metadata[f"{ARCHITECTURE_OF[case]}.block_count"] == 4
    check_greedy_text(model, path, build, prompt)
    weights = checkpoint / "model.safetensors"
    more = ("input_layernorm", "mlp.gate", "eh_proj", "shared_head.norm")
    save_file(
        load_file(weights) | {f"model.layers.3.{name}.weight": np.ones((8, 8), np.float32) for name in more}, weights
    )
    check_greedy_text(model, checkpoint, build, prompt)


def test_what_ernie_drafts_with_is_left_out(
    make_oracle: Callable[..., tuple[Any, Path]], build: Callable[..., Made], prompt: list[int]
) -> None:
    """Its folders have it beside the layers, its files do without."""
    family, changes = FAMILIES["ernie-moe"]
    model, checkpoint = make_oracle(family, **changes)
    weights = checkpoint / "model.safetensors"
    save_file(load_file(weights) | {"model.mtp_linear_proj.0.weight": np.ones((8, 8), np.float32)}, weights)
    check_greedy_text(model, checkpoint, build, prompt)


def test_attention_in_one_matrix(
    make_oracle: Callable[..., tuple[Any, Path]], build: Callable[..., Made], prompt: list[int], tmp_path: Path
) -> None:
    """As files of GLM-4's first release have it."""
    model, checkpoint = make_oracle("Glm", **FAMILIES["glm"][1])
    tensors = load_file(checkpoint / "model.safetensors")
    for layer in range(3):
        name = f"model.layers.{layer}.self_attn."
        for kind in ("weight", "bias"):
            parts = [tensors.pop(f"{name}{part}_proj.{kind}") for part in "qkv"]
            tensors[f"{name}qkv_proj.{kind}"] = np.concatenate(parts)
    save_file(tensors, checkpoint / "model.safetensors")
    check_greedy_text(model, write_gguf(checkpoint, tmp_path / "model.gguf"), build, prompt)


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0])
def test_codes_of_experts_are_those_of_the_file(
    kind: GGMLQuantizationType, make_oracle: Callable[..., tuple[Any, Path]], tmp_path: Path
) -> None:
    _, checkpoint = make_oracle("Qwen3Moe", **MOE)
    source = GgufSource(write_gguf(checkpoint, tmp_path / "m.gguf", lambda name: kind if "exps" in name else F32))
    with source.tensors() as tensors:
        experts = ExpertTensors(tensors, read_network(source.config), 1)
        for expert in (0, 7):
            kept = (*experts.kept_gate_up(expert), experts.kept_down(expert))
            floats = (*experts.gate_up(expert), experts.down(expert))
            for blocks, values in zip(kept, floats, strict=True):
                assert not isinstance(blocks, np.ndarray)
                assert np.array_equal(floats_of(blocks, values.shape[1]), values)


def test_experts_whose_matrices_are_of_two_widths(
    make_oracle: Callable[..., tuple[Any, Path]], build: Callable[..., Made], tmp_path: Path
) -> None:
    """The operator knows one: codes of 4 bits become 8 of the same value."""
    _, checkpoint = make_oracle("Qwen3Moe", **MOE)
    kinds = {"down_exps": GGMLQuantizationType.Q8_0, "exps": GGMLQuantizationType.Q4_0}
    path = write_gguf(
        checkpoint,
        tmp_path / "m.gguf",
        lambda name: next((kind for part, kind in kinds.items() if part in name), F32),
    )
    _, manifest = build(path, quant=Quant.KEEP, layout=Layout.SEGMENTS)
    assert manifest.parity["kl"] < 0.02


@pytest.mark.parametrize("kind", [GGMLQuantizationType.F32, GGMLQuantizationType.BF16])
@pytest.mark.parametrize("quant", [Quant.FP32, Quant.INT4])
def test_weights_are_those_of_the_safetensors_folder_to_the_byte(
    tiny_checkpoint: Path, build: Callable[..., Made], tmp_path: Path, kind: GGMLQuantizationType, quant: Quant
) -> None:
    """Its tensors are bfloat16, which both types hold."""
    _, expected = build(tiny_checkpoint, quant=quant)
    _, manifest = build(write_gguf(tiny_checkpoint, tmp_path / "tiny.gguf", kind), quant=quant)
    weights = {name: entry for name, entry in expected.files.items() if name.endswith(".data")}
    assert weights
    assert weights.items() <= manifest.files.items()
    assert manifest.model == expected.model
    assert (manifest.name, manifest.source) == ("tiny", "tiny")


def facts(path: Path, architecture: str = "llama", **values: object) -> Path:
    """A file without tensors."""
    writer = gguf.GGUFWriter(path, architecture)
    sizes: dict[str, object] = {
        "embedding_length": 64,
        "block_count": 2,
        "attention.head_count": 4,
        "context_length": 256,
        "feed_forward_length": 128,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    for key, value in (sizes | values).items():
        whole = key if key.startswith(("split.", "general.")) else f"{architecture}.{key}"
        if isinstance(value, list):
            writer.add_array(whole, value)
        elif isinstance(value, str):
            writer.add_string(whole, value)
        elif isinstance(value, float):
            writer.add_float32(whole, value)
        elif isinstance(value, int):
            writer.add_uint32(whole, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(
    ("architecture", "layers", "hidden", "heads", "head_dim", "scalar"),
    [
        ("gemma2", 46, 4608, 32, 128, 144),  # 27B: width / heads
        ("gemma2", 42, 3584, 16, 256, 256),
        ("gemma3", 62, 5376, 32, 128, 168),
        ("gemma3", 48, 3840, 16, 256, 256),
    ],
)
def test_the_scale_of_gemmas_attention(
    architecture: str, layers: int, hidden: int, heads: int, head_dim: int, scalar: int, tmp_path: Path
) -> None:
    """`query_pre_attn_scalar` of the published configs, which files do not say."""
    sizes = {"block_count": layers, "embedding_length": hidden, "attention.head_count": heads}
    lengths = {"attention.key_length": head_dim, "attention.value_length": head_dim}
    header = read_header(facts(tmp_path / "m.gguf", architecture, **sizes, **lengths))
    found = architecture_of(header)
    config = network_config(header, found, read_geometry(header, found), Table())
    assert read_network(config).attention_scale == pytest.approx(scalar**-0.5, rel=1e-12)


@pytest.mark.parametrize(("architecture", "window"), [("gemma2", 4096), ("llama", 0)])
def test_the_window_of_a_file_that_does_not_say_it(architecture: str, window: int, tmp_path: Path) -> None:
    header = read_header(facts(tmp_path / "m.gguf", architecture))
    found = architecture_of(header)
    config = network_config(header, found, read_geometry(header, found), Table())
    assert (config["sliding_window"] or 0) == window


class Table(Checkpoint):
    """A checkpoint with nothing but an embedding."""

    def __contains__(self, name: str) -> bool:
        return name == "token_embd.weight"

    def shape(self, name: str) -> tuple[int, ...]:
        return 256, 64


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": ({"architecture": "mamba"}, "architecture 'mamba' is not supported"),
    "no layers": ({"block_count": None}, "llama.block_count is missing"),
    "many layers": ({"block_count": 1 << 30}, "llama.block_count must be an integer from 1 to 1024"),
    "heads that differ": ({"attention.head_count": [4] * 2000}, "llama.attention.head_count must be an integer"),
    "a text": ({"embedding_length": "64"}, "llama.embedding_length must be an integer"),
    "experts": ({"architecture": "gemma", "expert_count": 8}, "gemma.expert_count is not supported"),
    "long values": ({"attention.key_length": 16, "attention.value_length": 32}, "different lengths"),
    "odd heads": ({"attention.key_length": 15, "attention.value_length": 15}, "15 numbers cannot be turned in pairs"),
    "one of several files": ({"split.count": 3}, "one of 3 files of a model; name the first"),
    "vectors by the mean": ({"pooling_type": 1}, "llama.pooling_type 1 is not supported .supported: 3, the last"),
    "no tensors": ({}, "has no tensor 'token_embd.weight'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_facts_that_are_refused(case: str, tmp_path: Path) -> None:
    values, reason = REFUSED[case]
    with pytest.raises(CompileError, match=reason) as caught:
        GgufSource(facts(tmp_path / "m.gguf", **values))
    assert str(caught.value).startswith("m.gguf")
    assert "\n" not in str(caught.value)


def test_a_tensor_that_nothing_reads_is_named(
    tiny_checkpoint: Path, build: Callable[..., Made], tmp_path: Path
) -> None:
    extra = np.zeros((64, 64), np.float32)
    path = write_gguf(tiny_checkpoint, tmp_path / "n.gguf", change=lambda w: w.add_tensor("blk.0.attn_sinks", extra))
    with pytest.raises(UnsupportedModel, match=r"tensor blk\.0\.attn_sinks, which qwen3 does not use"):
        build(path)


def test_without_the_package_folders_are_still_compiled(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came to the extra later than the others."""
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    assert source.open_source(tiny_checkpoint).config["model_type"] == "qwen3"
    with pytest.raises(CompileError, match="pip install"):
        source.open_source(facts(tmp_path / "m.gguf"))
