"""What is learned in reasonable time and memory, and what is said where it is not."""

from engine.compile.quantisation.learn.learning_plan import LAYER_RATES, LEAST_STEPS, MODEL_RATES, PATIENCE, planned
from engine.models.family import read_network
from engine.models.network import Network
from tools.random_checkpoint import SHAPES

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
    assert (plan.layers, plan.model, plan.skipped) == (LAYER_RATES, MODEL_RATES, ())
    assert plan.layer_steps == sum(rates.steps for rates in LAYER_RATES)
    assert plan.seconds < 60
    assert plan.memory < GB


def test_fewer_steps_where_all_would_take_too_long() -> None:
    plan = planned(network_of("qwen3-0.6b"), True, TOKENS, 24 * GB)
    assert plan.layers == LAYER_RATES
    (rates,) = plan.model
    assert LEAST_STEPS <= rates.steps < MODEL_RATES[0].steps
    assert PATIENCE < plan.seconds < 3 * PATIENCE
    assert 3 * GB < plan.memory < 10 * GB


def test_the_whole_model_is_left_out_by_time_and_by_memory() -> None:
    large = planned(network_of("qwen3-8b"), True, TOKENS, 200 * GB)
    assert large.model == ()
    assert "scales are not learned end to end: 6 hours would be the least" in large.skipped
    small = planned(network_of("qwen3-0.6b"), True, TOKENS, 4 * GB)
    assert small.model == ()
    assert small.layers
    assert small.skipped == ("scales are not learned end to end: it would take 6.7 GB of the machine's 4.0",)
    assert small.memory < 4 * GB
    assert small.seconds < planned(network_of("qwen3-0.6b"), True, TOKENS, 24 * GB).seconds


def test_what_predicts_no_tokens_has_its_layers_learned() -> None:
    plan = planned(network_of("tiny"), False, TOKENS, 0)
    assert (plan.layers, plan.model, plan.skipped) == (LAYER_RATES, (), ())


def test_an_unknown_machine_has_memory_enough() -> None:
    assert planned(network_of("qwen3-0.6b"), True, TOKENS, 0) == planned(
        network_of("qwen3-0.6b"), True, TOKENS, 99 * GB
    )
