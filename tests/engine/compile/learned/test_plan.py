"""What is learned in reasonable time and memory, and what is said where it is not."""

import pytest

from engine.compile.learned.layer import RATES as LAYER_RATES
from engine.compile.learned.model import RATES as MODEL_RATES
from engine.compile.learned.plan import LEAST_STEPS, planned
from engine.compile.random_checkpoint import SHAPES
from engine.models.family import read_network
from engine.models.network import Network

TOKENS = 32_768
GB = 10**9


def network_of(name: str) -> Network:
    shape = SHAPES[name]
    sizes = {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.max_position,
        "tie_word_embeddings": shape.tied,
    }
    return read_network({"architectures": ["Qwen3ForCausalLM"], "rms_norm_eps": 1e-6, "rope_theta": 1e6, **sizes})


def test_a_tiny_model_is_learned_with_all_steps_in_little_memory() -> None:
    plan = planned(network_of("tiny"), True, TOKENS, 8 * GB)
    assert (plan.layer, plan.model, plan.skipped) == (LAYER_RATES, MODEL_RATES, "")
    assert plan.seconds < 60
    assert plan.memory < GB


def test_fewer_steps_where_all_would_take_too_long() -> None:
    plan = planned(network_of("qwen3-0.6b"), True, TOKENS, 24 * GB)
    assert plan.layer is not None
    assert plan.model is not None
    assert LEAST_STEPS <= plan.model.steps < MODEL_RATES.steps
    assert 3600 < plan.seconds < 4 * 3600
    assert 3 * GB < plan.memory < 10 * GB


def test_the_whole_model_is_left_out_by_time_and_by_memory() -> None:
    large = planned(network_of("qwen3-8b"), True, TOKENS, 200 * GB)
    assert large.model is None
    assert large.skipped == "20 steps would take 6 hours"
    small = planned(network_of("qwen3-0.6b"), True, TOKENS, 4 * GB)
    assert small.model is None
    assert small.layer is not None
    assert small.skipped.startswith("it would take 5 GB of the machine's 4")


@pytest.mark.parametrize("machine", [0, 24 * GB])
def test_an_unknown_machine_has_memory_enough(machine: int) -> None:
    assert planned(network_of("qwen3-0.6b"), True, TOKENS, machine).model is not None


def test_it_grows_with_the_model() -> None:
    tiny, small, middle = (planned(network_of(name), True, TOKENS, 0) for name in ("tiny", "qwen3-0.6b", "qwen3-1.7b"))
    assert tiny.memory < small.memory < middle.memory
    assert tiny.seconds < small.seconds
