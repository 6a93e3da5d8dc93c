"""config.json as a Network: what is accepted, and what is refused by name."""

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from msgspec import structs
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from engine.bundle.manifest import DiffusionSpec
from engine.compile.sources.checkpoint import Checkpoint
from engine.compile.sources.task import names_in
from engine.errors import CompileError, UnsupportedModel
from engine.models.family import FAMILIES, read_network

GOOD: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 2048,
}


def test_geometry_and_parameters() -> None:
    """Sizes, defaults, and a parameter count by hand."""
    network = read_network(GOOD)
    spec = network.spec
    assert (spec.layers, spec.head_dim, spec.kv_heads, spec.tied_head) == (2, 16, 2, False)
    assert (network.query_width, network.key_width) == (64, 32)
    layer = 64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 128 + 2 * 64
    assert spec.parameters == 2 * layer + 2 * 100 * 64 + 64
    assert network.max_position == network.compiled_context == 2048


@pytest.mark.parametrize("name", ["SmolLM3", "Ernie4_5"])
def test_what_the_class_ties_is_tied_where_nothing_is_said(name: str) -> None:
    """As transformers reads files that leave the key out."""
    config = GOOD | {"architectures": [f"{name}ForCausalLM"], "head_dim": 16}
    assert read_network(config).spec.tied_head
    assert not read_network(config | {"tie_word_embeddings": False}).spec.tied_head


@pytest.mark.parametrize("is_switched", [True, False])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("Mistral", "mistral"), ("Ministral", "ministral"), ("Ministral3", "ministral3"), ("Phi3", "phi3")),
        *(("Qwen2", "qwen2"), ("Qwen3", "qwen3"), ("SmolLM3", "smollm3"), ("Olmo3", "olmo3"), ("Exaone4", "exaone4")),
        *(("Gemma2", "gemma2"), ("Gemma3", "gemma3_text"), ("Mixtral", "mixtral"), ("GptOss", "gpt_oss")),
    ],
)
def test_a_window_that_the_file_leaves_out_is_its_class_s(name: str, kind: str, is_switched: bool) -> None:
    """As transformers reads it; null is no window, alone or in the config of a text model."""
    own = {"num_local_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 8192, "max_window_layers": 0}
    config = GOOD | own | {"architectures": [f"{name}ForCausalLM"], "head_dim": 16, "use_sliding_window": is_switched}
    theirs = CONFIG_MAPPING[kind](use_sliding_window=is_switched).sliding_window or 0
    assert widest(config) == theirs and widest(config | {"sliding_window": None}) == 0
    if name in ("Mistral", "Gemma3"):
        whole = {"architectures": [f"{name.removesuffix('3')}3ForConditionalGeneration"]}
        text = {key: value for key, value in config.items() if key != "architectures"}
        assert widest(whole | {"text_config": text}) == theirs
        assert widest(whole | {"text_config": text | {"sliding_window": None}}) == 0


def widest(config: dict[str, Any]) -> int:
    return max((each.window for each in read_network(config).spec.attention), default=0)


@pytest.mark.parametrize("has_head", [True, False])
def test_where_the_config_contradicts_itself_the_checkpoint_tells_of_a_head(has_head: bool) -> None:
    text = {key: value for key, value in GOOD.items() if key != "architectures"} | {"tie_word_embeddings": True}
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "tie_word_embeddings": False, "text_config": text}
    network = read_network(config)
    head = f"{network.details.names.head}.weight"
    there = cast("Checkpoint", {f"{network.details.names.embedding}.weight": 0} | ({head: 0} if has_head else {}))
    found = names_in(there, network)
    assert found.spec.tied_head is not has_head
    assert found.spec.parameters - network.spec.parameters == has_head * 100 * 64


@pytest.mark.parametrize(("asked", "given"), [(0, 2048), (100, 100), (5000, 2048)])
def test_context_is_bounded_by_the_checkpoint(asked: int, given: int) -> None:
    """0 means all of it; more than it was made for is not given."""
    assert read_network(GOOD, asked).compiled_context == given


LAYERS = {"layer_types": ["linear_attention", "full_attention"]}
COUNTS = dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 8)
EXPERTS = COUNTS | dict.fromkeys(("num_experts_per_tok", "moe_k"), 2) | {"moe_intermediate_size": 32}
EXPERTS |= {"shared_expert_intermediate_size": 32, "shared_intermediate_size": 32}
WITH_EXPERTS = (
    "Qwen3Moe",
    "Qwen2Moe",
    "Mixtral",
    "Olmoe",
    "GraniteMoe",
    "GraniteMoeShared",
    "Glm4Moe",
    "Ernie4_5_Moe",
    "GptOss",
)
HEADS = {"qk_nope_head_dim": 16, "v_head_dim": 16}
MORE: dict[str, dict[str, Any]] = {
    "SDARForCausalLM": {"mask_token_id": 99},
    "GraniteMoeHybridForCausalLM": {"shared_intermediate_size": 128, "layer_types": ["attention"] * 2},
    "Lfm2ForCausalLM": {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3},
    "FalconH1ForCausalLM": {"mamba_n_heads": 8},
    "NemotronHForCausalLM": {"hybrid_override_pattern": "M-*", "mamba_num_heads": 4, "mamba_head_dim": 16},
    **{f"{name}ForCausalLM": EXPERTS for name in (*WITH_EXPERTS, "GptOss")},
    **{f"{name}ForCausalLM": EXPERTS | HEADS for name in ("DeepseekV2", "Glm4MoeLite")},
    "Lfm2MoeForCausalLM": EXPERTS | {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "Qwen2_5_VLForConditionalGeneration": {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}},
    "Qwen3VLForConditionalGeneration": {"text_config": GOOD | {"head_dim": 128}},
    "InternVLForConditionalGeneration": {"text_config": GOOD | {"model_type": "qwen3"}},
    "Mistral3ForConditionalGeneration": {"text_config": GOOD | {"head_dim": 16, "model_type": "ministral3"}},
    **{f"Gemma3nFor{name}": {"num_kv_shared_layers": 0} for name in ("CausalLM", "ConditionalGeneration")},
    "Qwen3_5ForCausalLM": LAYERS,
    "Qwen3_5MoeForCausalLM": EXPERTS | LAYERS,
    "Qwen3_5MoeForConditionalGeneration": {"text_config": GOOD | EXPERTS | LAYERS},
    "Qwen3_5ForConditionalGeneration": {"text_config": GOOD | LAYERS},
}


@pytest.mark.parametrize("architecture", FAMILIES)
def test_every_family_reads_a_minimal_config(architecture: str) -> None:
    """The table is complete."""
    config = GOOD | {"architectures": [architecture]}
    config |= MORE.get(architecture, {})
    assert read_network(config).spec.family == FAMILIES[architecture].name


SDAR = GOOD | {"architectures": ["SDARForCausalLM"], "model_type": "sdar", "mask_token_id": 99}


def test_sdar_is_qwen3_with_blocks() -> None:
    qwen3 = read_network(GOOD | {"architectures": ["Qwen3ForCausalLM"]})
    sdar = read_network(SDAR | {"block_size": 16})
    assert sdar.details.diffusion == DiffusionSpec(16, 99)
    assert qwen3.details == replace(sdar.details, diffusion=None)
    assert qwen3.spec == structs.replace(sdar.spec, family="qwen3")
    assert read_network(SDAR).details.diffusion == DiffusionSpec(4, 99)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask_token_id": None}, "mask_token_id is missing"),
        ({"mask_token_id": 100}, "mask_token_id must be an integer from 0 to 99"),
        ({"block_size": 0}, "block_size must be an integer from 1 to 1024"),
    ],
)
def test_blocks_that_cannot_be(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CompileError, match=message):
        read_network(SDAR | changes)


def test_family_differences() -> None:
    """Biases and head norms as the architectures define them."""
    qwen2 = read_network(GOOD | {"architectures": ["Qwen2ForCausalLM"]}).details
    qwen3 = read_network(GOOD | {"architectures": ["Qwen3ForCausalLM"]})
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.has_qk_norm) == (True, False, False)
    assert (qwen3.details.qkv_bias, qwen3.details.has_qk_norm, qwen3.spec.head_dim) == (False, True, 128)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["MptForCausalLM"]}, "MptForCausalLM"),
        ({"architectures": None, "model_type": "rwkv"}, "rwkv"),
        ({"hidden_act": "gelu"}, "'gelu'"),
        ({"layer_types": ["linear_attention"]}, "'linear_attention'"),
        ({"layer_types": ["sliding_attention"] * 2, "sliding_window": 8}, "'sliding_attention' is not supported"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "'dynamic'"),
        ({"architectures": ["Gemma3ForCausalLM"], "hidden_activation": "silu"}, "'silu'"),
        ({"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mamba"}, "model_type 'mamba'"),
        ({"architectures": ["Gemma3ForCausalLM"], "use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
)
def test_unsupported_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    """What is not implemented never compiles to something else."""
    with pytest.raises(UnsupportedModel, match=message):
        read_network(GOOD | changes)


@pytest.mark.parametrize(("context", "gain"), [(512, 0.0), (513, 0.1), (0, 0.1)])
def test_scores_grow_behind_the_original_context(context: int, gain: float) -> None:
    """Ministral 3; in front of it nothing is computed for that."""
    scaling = {"type": "yarn", "factor": 4.0, "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 512}
    network = read_network(GOOD | {"architectures": ["Ministral3ForCausalLM"], "rope_scaling": scaling}, context)
    assert network.spec.rope.gain == gain and ("grow" in network.own_forms) == bool(gain)
    found = network.spec.rope.gains(np.array([0, 511, 512, 1535, 1536]))
    assert found == pytest.approx([1 + gain * math.log(k) for k in (1, 1, 2, 3, 4)])


LISTED = {"layer_types": ["sliding_attention", "full_attention"]}
QWEN2 = {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 512}
WINDOWS: list[tuple[dict[str, Any], tuple[int, int]]] = [
    ({"architectures": ["MistralForCausalLM"], "sliding_window": 1024}, (1024, 1024)),
    ({"architectures": ["MistralForCausalLM"], "sliding_window": 4096}, (0, 0)),
    ({"architectures": ["MistralForCausalLM"], "sliding_window": None}, (0, 0)),
    ({"architectures": ["Phi3ForCausalLM"], "sliding_window": 2047}, (2047, 2047)),
    (QWEN2, (0, 0)),
    (QWEN2 | {"max_window_layers": 1}, (0, 512)),
    (QWEN2 | {"use_sliding_window": False, "max_window_layers": 0}, (0, 0)),
    ({"architectures": ["Qwen3ForCausalLM"], "sliding_window": 512} | LISTED, (512, 0)),
    ({"architectures": ["Gemma2ForCausalLM"], "sliding_window": 512}, (512, 0)),
    ({"architectures": ["Gemma3ForCausalLM"], "sliding_window": 512, "sliding_window_pattern": 2}, (512, 0)),
    ({"architectures": ["Exaone4ForCausalLM"], "sliding_window": 512, "sliding_window_pattern": "GL"}, (0, 512)),
]


@pytest.mark.parametrize(("changes", "expected"), WINDOWS)
def test_the_window_of_each_layer(changes: dict[str, Any], expected: tuple[int, int]) -> None:
    """One that hides nothing in the context is none."""
    assert read_network(GOOD | changes).spec.layer_windows == expected


def test_a_narrow_context_makes_a_window_inactive() -> None:
    """A window of 1024 hides nothing in a context of 1024."""
    values = GOOD | {"architectures": ["MistralForCausalLM"], "sliding_window": 1024}
    assert read_network(values, 1024).spec.attention == ()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hidden_size", 0),
        ("hidden_size", -64),
        ("hidden_size", "64"),
        ("hidden_size", True),
        ("hidden_size", 1 << 40),
        ("num_hidden_layers", 1.5),
        ("num_hidden_layers", 10**9),
        ("num_key_value_heads", 3),
        ("num_key_value_heads", 8),
        ("vocab_size", None),
        ("intermediate_size", float("inf")),
        ("max_position_embeddings", 0),
        ("head_dim", 7),
        ("rms_norm_eps", -1.0),
        ("tie_word_embeddings", 1),
        ("hidden_act", 3),
    ],
)
def test_damaged_values_name_their_key(key: str, value: object) -> None:
    """An untrusted file cannot size anything before it is checked."""
    with pytest.raises(CompileError, match=key if key != "head_dim" else "rotary part of a head"):
        read_network(GOOD | {key: value})
