"""Inverse frequencies against transformers' own functions, in both spellings of the config."""

from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.hunyuan_v1_dense.modeling_hunyuan_v1_dense import HunYuanDenseV1RotaryEmbedding
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.errors import CompileError, UnsupportedModel
from engine.models.config_fields import ConfigFields
from engine.models.rotary import RopeReading, read_rope

HEAD_DIM = 64
LENGTH = 4096
LONG = [1.0 + 0.3 * index for index in range(32)]
SHORT = [1.0 + 0.01 * index for index in range(32)]
SCALED: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama3": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    "longrope": {
        "rope_type": "longrope",
        "long_factor": LONG,
        "short_factor": SHORT,
        "original_max_position_embeddings": 1024,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    "yarn-betas": {
        "rope_type": "yarn",
        "factor": 32.0,
        "original_max_position_embeddings": 512,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "truncate": False,
    },
    "yarn-mscale": {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 512,
        "mscale": 0.7,
        "mscale_all_dim": 0.4,
    },
    "yarn-attention-factor": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 512,
        "attention_factor": 1.25,
    },
    "alpha": {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0},
    "longrope-factor": {
        "rope_type": "longrope",
        "long_factor": LONG,
        "short_factor": SHORT,
        "factor": 16.0,
        "original_max_position_embeddings": 1024,
    },
    "longrope-attention-factor": {
        "rope_type": "longrope",
        "long_factor": LONG,
        "short_factor": SHORT,
        "attention_factor": 1.25,
        "original_max_position_embeddings": 1024,
    },
}


def theirs(parameters: dict[str, Any], theta: float, context: int) -> tuple[np.ndarray, float]:
    """transformers' inverse frequencies and factor for a context."""
    config = LlamaConfig(
        hidden_size=4 * HEAD_DIM,
        num_attention_heads=4,
        max_position_embeddings=LENGTH,
        rope_parameters=parameters | {"rope_theta": theta},
    )
    if parameters["rope_type"] == "default":
        frequencies, factor = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    elif "alpha" in parameters:
        frequencies, factor = HunYuanDenseV1RotaryEmbedding.compute_ntk_alpha_rope_parameters(config)
    else:
        frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, "cpu", seq_len=context)
    return frequencies.numpy(), float(factor)


@pytest.mark.parametrize("spelling", ["rope_parameters", "rope_scaling", "rope_scaling with type"])
@pytest.mark.parametrize("context", [512, LENGTH])
@pytest.mark.parametrize("case", SCALED)
def test_same_as_transformers(case: str, context: int, spelling: str) -> None:
    """Values to 1e-6 (relative), whichever way the config is written; theta may be an integer."""
    parameters, theta = SCALED[case], 500_000
    values: dict[str, Any] = {"rope_theta": theta, "rope_scaling": dict(parameters)}
    if spelling == "rope_parameters":
        values = {"rope_parameters": parameters | {"rope_theta": theta}}
    elif spelling == "rope_scaling with type":
        values["rope_scaling"]["type"] = values["rope_scaling"].pop("rope_type")
    ours = read_rope(ConfigFields(values), RopeReading(HEAD_DIM, LENGTH, context))
    frequencies, factor = theirs(parameters, theta, context)
    assert np.allclose(ours.inverse_frequencies, frequencies, rtol=1e-6, atol=0)
    assert ours.factor == pytest.approx(factor, rel=1e-12)
    assert ours.rotary_dim == HEAD_DIM


def test_original_length_beside_the_parameters() -> None:
    """Phi-3 keeps the original length outside; it decides between the tables."""
    parameters = {key: value for key, value in SCALED["longrope"].items() if key[:8] != "original"}
    values = {"rope_scaling": parameters, "original_max_position_embeddings": 1024}
    short = read_rope(ConfigFields(values), RopeReading(HEAD_DIM, LENGTH, 1024, has_partial=True))
    long = read_rope(ConfigFields(values), RopeReading(HEAD_DIM, LENGTH, 1025, has_partial=True))
    plain = 10_000.0 ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    assert np.allclose(short.inverse_frequencies, plain / SHORT, rtol=1e-6)
    assert np.allclose(long.inverse_frequencies, plain / LONG, rtol=1e-6)


def test_old_name_of_longrope() -> None:
    """`su` is longrope."""
    parameters = SCALED["longrope"] | {"rope_type": "su"}
    ours = read_rope(ConfigFields({"rope_scaling": parameters}), RopeReading(HEAD_DIM, LENGTH, LENGTH))
    frequencies, factor = theirs(SCALED["longrope"], 10_000.0, LENGTH)
    assert np.allclose(ours.inverse_frequencies, frequencies, rtol=1e-6) and ours.factor == pytest.approx(factor)


@pytest.mark.parametrize("kind", ["dynamic", "proportional", "mrope"])
def test_unknown_types_are_refused_by_name(kind: str) -> None:
    """The message says which type it was."""
    with pytest.raises(UnsupportedModel, match=f"'{kind}'"):
        read_rope(ConfigFields({"rope_scaling": {"rope_type": kind}}), RopeReading(HEAD_DIM, LENGTH, LENGTH))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rope_theta": 0}, "rope_theta"),
        ({"rope_theta": "10000"}, "rope_theta"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": float("nan")}}, "factor"),
        ({"rope_scaling": SCALED["longrope"] | {"long_factor": [1.0]}}, "long_factor must be a list of 32"),
        ({"rope_scaling": SCALED["longrope"] | {"long_factor": [0.0] * 32}}, "long_factor holds 0.0"),
        ({"rope_scaling": SCALED["llama3"] | {"high_freq_factor": 1.0}}, "high_freq_factor"),
        ({"rope_scaling": [1]}, "rope_scaling must be an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ between layers"),
    ],
)
def test_damaged_parameters(values: dict[str, Any], message: str) -> None:
    """Every bad value is named."""
    with pytest.raises(CompileError, match=message):
        read_rope(ConfigFields(values), RopeReading(HEAD_DIM, LENGTH, LENGTH))
