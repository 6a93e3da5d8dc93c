"""Text models of checkpoints that also read images or hear, as transformers saves them: logits of a greedy text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from engine.bundle.manifest import Manifest
from engine.models.vision import text_alone
from tests.engine.compile.check.test_families import GEMMA, GEMMA3N, YARN
from tests.engine.compile.conftest import GEOMETRY, add_text_files, check_greedy_text
from tests.vision_models import randomise

EYES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
MISTRAL = {"head_dim": 16, "sliding_window": None}
SCALED = YARN | {"llama_4_scaling_beta": 0.5}
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "gemma3": ("Gemma3", {"model_type": "gemma3_text", **GEMMA, "num_hidden_layers": 7}, "siglip_vision_model"),
    "mistral": ("Mistral3", {"model_type": "mistral", **MISTRAL}, "pixtral"),
    "ministral3": ("Mistral3", {"model_type": "ministral3", **MISTRAL, "rope_parameters": SCALED}, "pixtral"),
}


@pytest.mark.parametrize("case", CASES)
def test_logits_of_a_text(
    case: str, tmp_path: Path, build: Callable[..., tuple[Path, Manifest]], prompt: list[int]
) -> None:
    family, text, eyes = CASES[case]
    config = getattr(transformers, f"{family}Config")(
        text_config={**GEOMETRY, **text}, vision_config={**EYES, "model_type": eyes}, mm_tokens_per_image=4
    )
    torch.manual_seed(3)
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config).eval()
    randomise(model)
    source = tmp_path / "checkpoint"
    model.save_pretrained(source)
    add_text_files(source)
    config_file = source / "config.json"
    config_file.write_text(json.dumps(text_alone(json.loads(config_file.read_text()))))
    check_greedy_text(model, source, build, prompt)


def test_logits_of_a_text_of_gemma3n(
    make_oracle: Callable[..., tuple[Any, Path]], build: Callable[..., tuple[Path, Manifest]], prompt: list[int]
) -> None:
    """Its class for all senses needs a package for eyes: here its text model has the names that it has in there."""
    model, source = make_oracle("Gemma3n", **GEMMA3N)
    file, config_file = source / "model.safetensors", source / "config.json"
    tensors = load_file(file)
    named = {name.replace("model.", "model.language_model.", 1): value for name, value in tensors.items()}
    unread = (
        "vision_tower.timm_model.conv.weight",
        "audio_tower.norm.weight",
        "language_model.layers.9.self_attn.k_proj.weight",
    )
    save_file(named | {f"model.{name}": np.ones((4, 4), np.float32) for name in unread}, file, {"format": "pt"})
    text = json.loads(config_file.read_text())
    config_file.write_text(json.dumps({"architectures": ["Gemma3nForConditionalGeneration"], "text_config": text}))
    check_greedy_text(model, source, build, prompt)
