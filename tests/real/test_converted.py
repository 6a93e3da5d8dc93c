"""GGUF files that llama.cpp's own converter makes of tiny folders of every family: transformers' tokens and logits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.bundle.manifest import Manifest
from tests.engine.compile.check.test_families import GPT_OSS_YARN as GPT_OSS
from tests.engine.compile.conftest import check_greedy_text, make_oracle, prompt
from tests.engine.compile.graphs.segments.test_recurrent import EXPERTS
from tests.engine.compile.sources.gguf.test_file import FAMILIES as WRITTEN
from tests.hybrid import TINY
from tests.real.test_projectors import with_every_token, with_merges

__all__ = ["make_oracle", "prompt"]
# What the converter takes for granted, as published models have it: heads of Mamba2 with 64 numbers, one constant of
# YaRN, and no window of Mistral, of which llama.cpp knows none.
MADE_OTHERWISE: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "granite4": {"num_experts_per_tok": 0},
    "granite4-hybrid": {"mamba_n_heads": 4, "mamba_expand": 4},
    "granite4-hybrid-moe": {"mamba_n_heads": 4, "mamba_expand": 4},
    "falcon-h1": {"mamba_d_ssm": 256, "mamba_n_heads": 4, "mamba_d_head": 64, "head_dim": 16},
    "falcon-h1-normed": {"mamba_d_ssm": 256, "mamba_n_heads": 4, "mamba_d_head": 64, "head_dim": 16},
    "nemotron-h-moe": {"mamba_head_dim": 64, "mamba_num_heads": 4},
    "gemma3n": {"vocab_size_per_layer_input": 384},
}
# Constants that no published model has; and what the converter takes for a model with experts, as transformers' class
# has defaults of those.
NOT_CONVERTED = ("ministral3-grown", "hunyuan-alpha", "nemotron-h")
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "gpt-oss": ("GptOss", GPT_OSS),
    "qwen35": ("Qwen3_5", TINY),
    "qwen35moe": ("Qwen3_5Moe", TINY | EXPERTS),
}
CASES = {name: case for name, case in WRITTEN.items() if name not in NOT_CONVERTED} | MORE


@pytest.mark.parametrize("case", CASES)
def test_tokens_and_logits(
    case: str,
    make_oracle: Callable[..., tuple[Any, Path]],
    build: Callable[..., tuple[Path, Manifest]],
    prompt: list[int],
    tmp_path: Path,
    convert: Callable[..., None],
) -> None:
    family, changes = CASES[case]
    model, folder = make_oracle(family, **(changes | MADE_OTHERWISE.get(case, {})))
    as_published(folder)
    file = tmp_path / "model.gguf"
    convert("--outtype", "f32", "--outfile", str(file), str(folder))
    check_greedy_text(model, file, build, prompt)


def as_published(folder: Path) -> None:
    """What the converter reads of configs and tokenizers that transformers writes otherwise now."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    if config["model_type"] == "granitemoehybrid":
        names = {"linear_attention": "mamba", "full_attention": "attention"}
        config["layer_types"] = [names[kind] for kind in config["layer_types"]]
    if config["model_type"] == "glm4_moe_lite":
        config["first_k_dense_replace"] = config.pop("mlp_layer_types").count("dense")
    if config["model_type"].startswith("qwen3_5"):
        config["mtp_num_hidden_layers"] = 1
    with_merges(folder)
    if config["model_type"].startswith(("gemma3_", "gemma4")):
        with_every_token(folder, config["vocab_size"])
    path.write_text(json.dumps(config))
