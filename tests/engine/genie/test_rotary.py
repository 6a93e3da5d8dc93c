"""Rotary tables from either place of genie_config.json, and from config.json, against transformers."""

from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig, Phi3Config
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.errors import BundleError
from engine.genie.config import Fields, GenieConfig
from engine.genie.extras import genie_rope

LLAMA3 = {
    "rope-type": "llama3",
    "factor": 32.0,
    "low-freq-factor": 1.0,
    "high-freq-factor": 4.0,
    "original-max-position-embeddings": 8192,
}
HEAD = 64


def config(position: dict[str, Any] | None = None, theta: float = 0.0, context: int = 4096) -> GenieConfig:
    return GenieConfig((), context, 0, None, (), "tokenizer.json", (), Fields(position or {}, "position"), theta)


def rope(settings: GenieConfig, model: dict[str, Any] | None = None, context: int = 4096) -> tuple[np.ndarray, float]:
    made = genie_rope(settings, Fields(model or {}, "config.json"), HEAD, context)
    assert made.rotary_dim == HEAD
    return np.array(made.inverse_frequencies, np.float32), made.factor


def test_plain_in_both_places() -> None:
    expected = 1.0 / 10000.0 ** (np.arange(0, HEAD, 2) / HEAD)
    for settings in (config(theta=10000.0), config({"type": "rope", "rope-dim": 32, "rope-theta": 10000})):
        np.testing.assert_allclose(rope(settings)[0], expected, rtol=1e-6)
    np.testing.assert_allclose(rope(config(), {"rope_theta": 10000.0})[0], expected, rtol=1e-6)


def test_linear() -> None:
    position = {"rope-theta": 10000, "rope-scaling": {"rope-type": "linear", "factor": 4.0}}
    np.testing.assert_allclose(rope(config(position))[0], rope(config(theta=1e4))[0] / 4, rtol=1e-6)


def test_llama3_in_both_files() -> None:
    scaling = {key.replace("-", "_"): value for key, value in LLAMA3.items()}
    model = LlamaConfig(head_dim=HEAD, rope_theta=500000.0, rope_scaling=scaling, max_position_embeddings=131072)
    expected, factor = ROPE_INIT_FUNCTIONS["llama3"](model, "cpu")
    assert factor == 1.0
    position = {"type": "rope", "rope-dim": 32, "rope-theta": 500000, "rope-scaling": LLAMA3}
    np.testing.assert_allclose(rope(config(position))[0], expected.numpy(), rtol=1e-6)
    np.testing.assert_allclose(rope(config(), {"rope_theta": 5e5, "rope_scaling": scaling})[0], expected, rtol=1e-6)


def test_yarn_with_all_its_keys_from_config_json() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
    scaling |= {"beta_fast": 16.0, "beta_slow": 2.0}
    model = LlamaConfig(head_dim=HEAD, rope_theta=1e6, rope_scaling=scaling, max_position_embeddings=32768)
    expected, factor = ROPE_INIT_FUNCTIONS["yarn"](model, "cpu")
    found = rope(config(theta=1e6), {"rope_scaling": scaling, "max_position_embeddings": 32768})
    np.testing.assert_allclose(found[0], expected.numpy(), rtol=1e-6)
    assert found[1] == pytest.approx(factor)


def test_a_proportional_table_turns_its_first_frequencies_only() -> None:
    """As Gemma 4's graphs take it: theta is spread over the whole head."""
    scaling = {"rope-type": "proportional", "partial-rotary-factor": 0.25}
    found, _ = rope(config({"type": "rope", "rope-dim": 32, "rope-theta": 1e6, "rope-scaling": scaling}))
    plain, _ = rope(config(theta=1e6))
    np.testing.assert_allclose(found[:8], plain[:8], rtol=1e-6)
    assert not found[8:].any()
    with pytest.raises(BundleError, match="proportional needs a partial-rotary-factor up to 1"):
        rope(config({"rope-theta": 1e6, "rope-scaling": {"rope-type": "proportional"}}))


def test_a_scaling_of_config_json_is_not_passed_over() -> None:
    told = {"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}
    with pytest.raises(BundleError, match="rotary type 'dynamic' is not supported"):
        rope(config(theta=1e4), told)
    explicit = config({"rope-theta": 10000, "rope-scaling": {"rope-type": "default"}})
    np.testing.assert_allclose(rope(explicit, told)[0], rope(config(theta=1e4))[0])


@pytest.mark.parametrize(("context", "table"), [(4096, "short"), (8192, "long")])
def test_longrope_by_compiled_context(context: int, table: str) -> None:
    short, long = (np.linspace(1.0, top, HEAD // 2).tolist() for top in (1.3, 30.0))
    scaling = {"type": "longrope", "short_factor": short, "long_factor": long}
    model = Phi3Config(
        hidden_size=HEAD * 4,
        num_attention_heads=4,
        rope_theta=10000.0,
        rope_scaling=scaling,
        max_position_embeddings=131072,
        original_max_position_embeddings=4096,
    )
    expected, factor = ROPE_INIT_FUNCTIONS["longrope"](model, "cpu", seq_len=context)
    position = {
        "type": "rope",
        "rope-dim": 32,
        "rope-theta": 10000,
        "rope-scaling": {
            "rope-type": "longrope",
            "short-factor": short,
            "long-factor": long,
            "original-max-position-embeddings": 4096,
        },
    }
    files = {"max_position_embeddings": 131072}
    found = rope(config(position), files, context)
    np.testing.assert_allclose(found[0], expected.numpy(), rtol=1e-6)
    assert found[1] == pytest.approx(factor)
    telling = {**files, "rope_scaling": scaling, "original_max_position_embeddings": 4096}
    for settings in (config(theta=1e4), config({"type": "rope", "rope-dim": 32, "rope-theta": 10000})):
        found = rope(settings, telling, context)  # as exporters write it: theta for Genie, the rest in config.json
        np.testing.assert_allclose(found[0], expected.numpy(), rtol=1e-6)
        assert found[1] == pytest.approx(factor)
    np.testing.assert_allclose(rope(config(), {**telling, "rope_theta": 1e4}, context)[0], expected.numpy(), rtol=1e-6)
    with pytest.raises(BundleError, match=r"longrope has no factor, and config\.json has no max_position_embeddings"):
        rope(config(position))
    position["rope-scaling"]["factor"] = 32.0
    assert rope(config(position))[1] == pytest.approx(factor)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (config(), "tells no rotation"),
        (config({"type": "rope", "rope-dim": 32}), "neither positional-encoding nor QnnHtp has a rope-theta"),
        (
            config({"rope-theta": 1e4, "rope-scaling": {"factor": 8.0, "low-freq-factor": 1.0}}),
            "rope-scaling has factor, low-freq-factor but no rope-type",
        ),
        (config({"type": "alibi"}), "positional encoding 'alibi' is not supported"),
        (config({"rope-theta": 1e4, "rope-scaling": {"rope-type": "yarn"}}), "rotary scaling 'yarn' is not supported"),
        (config({"rope-theta": 1e4, "rope-scaling": {"rope-type": "llama3"}}), "factor is missing"),
    ],
)
def test_refusals(settings: GenieConfig, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        rope(settings)
