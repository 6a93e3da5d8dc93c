"""`python -m tests.engine.adapters.write_with_peft FOLDER`: adapters as PEFT writes them, and what PEFT computes.

Needs peft beside what the tests need. What it wrote lies in `written_by_peft/`.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from tools.random_checkpoint import SHAPES, write_checkpoint

PROMPT = [(i * 31 + 7) % 256 for i in range(40)]
TOKENS = 24
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {"r": 3, "lora_alpha": 9, "target_modules": ["q_proj", "v_proj"]},
    "rslora": {"r": 2, "lora_alpha": 3, "target_modules": ALL, "use_rslora": True},
    "patterns": {
        "r": 2,
        "lora_alpha": 4,
        "target_modules": ["k_proj", "down_proj"],
        "layers_to_transform": [1],
        "rank_pattern": {"down_proj": 5},
        "alpha_pattern": {"layers.1.self_attn.k_proj": 7},
    },
    "dora": {"r": 2, "target_modules": ["q_proj"], "use_dora": True},
    "bias": {"r": 2, "target_modules": ["q_proj"], "bias": "lora_only"},
    "head": {"r": 2, "target_modules": ["lm_head"]},
    "saved": {"r": 2, "target_modules": ["q_proj"], "modules_to_save": ["norm"]},
    "embedding": {"r": 2, "target_modules": ["embed_tokens"]},
}
SUPPORTED = ("plain", "rslora", "patterns")


def write(folder: Path) -> None:
    """One folder for each config; expected.json of the supported ones: greedy tokens, the last row of logits."""
    with tempfile.TemporaryDirectory() as scratch:
        checkpoint = Path(scratch) / "tiny"
        write_checkpoint(checkpoint, SHAPES["tiny"])
        for name, config in CONFIGS.items():
            base = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
            torch.manual_seed(len(name))
            model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", **config)).eval()
            with torch.no_grad():
                for path, parameter in model.named_parameters():
                    if "lora_" in path:
                        parameter.copy_(torch.randn(parameter.shape) * 0.3)
            model.peft_config["default"].base_model_name_or_path = "tiny"
            model.save_pretrained(folder / name, save_embedding_layers=False)
            (folder / name / "README.md").unlink(missing_ok=True)
            if name in SUPPORTED:
                _describe(model, folder / name / "expected.json")


def _describe(model: Any, path: Path) -> None:
    text = list(PROMPT)
    with torch.no_grad():
        for _ in range(TOKENS):
            logits = model(input_ids=torch.tensor([text])).logits[0, -1]
            text.append(int(logits.argmax()))
    expected = {"tokens": text[len(PROMPT) :], "last_logits": [round(float(value), 5) for value in logits]}
    path.write_text(json.dumps(expected))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
