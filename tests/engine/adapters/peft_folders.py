"""Adapters as PEFT writes them, of random numbers, and what they make of a checkpoint: W + scale * B A."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from engine.bundle.specs import LoraModule

assert ml_dtypes.bfloat16  # numpy learns the name that checkpoints use


def write_adapter(
    folder: Path,
    modules: Sequence[LoraModule],
    layers: Sequence[int],
    names: Sequence[str] = (),
    rank: int = 4,
    alpha: float = 8.0,
    seed: int = 1,
    dtype: str = "float32",
    **config: object,
) -> Path:
    """An adapter of some modules (all of them if no name is given) in some layers; returns its folder."""
    numbers = np.random.default_rng(seed)
    ranks = config.get("rank_pattern", {})
    assert isinstance(ranks, dict)
    tensors = {}
    for module in modules:
        if names and module.name not in names:
            continue
        for layer in layers:
            path, own = f"base_model.model.{module.in_layer(layer)}", ranks.get(module.name, rank)
            a = numbers.normal(0, module.inputs**-0.5, (own, module.inputs))
            b = numbers.normal(0, 0.7 * own**-0.5, (module.outputs, own))
            tensors |= {f"{path}.lora_A.weight": a.astype(dtype), f"{path}.lora_B.weight": b.astype(dtype)}
    values = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "somewhere",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": sorted(names or {module.name for module in modules}),
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "lora_dropout": 0.05,
        "modules_to_save": None,
        "use_dora": False,
        "use_rslora": False,
    }
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(values | config))
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    return folder


def changes(adapter: Path, scales: Mapping[str, float]) -> Iterator[tuple[str, np.ndarray]]:
    """Path and change [outputs, inputs] of each matrix. scales: by module's name, "" for all others."""
    tensors = load_file(adapter / "adapter_model.safetensors")
    for name, a in tensors.items():
        if name.endswith(".lora_A.weight"):
            path = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
            b = tensors[name.replace("lora_A", "lora_B")].astype(np.float64)
            scale = scales.get(path.rpartition(".")[2], scales[""])
            yield path, scale * (b @ a.astype(np.float64))


def merge(source: Path, adapter: Path, output: Path, scales: Mapping[str, float]) -> Path:
    """The checkpoint with the adapter in its weights, in float32; returns its folder."""
    shutil.copytree(source, output, ignore=shutil.ignore_patterns("*.safetensors*"))
    tensors: dict[str, np.ndarray] = {}
    for file in source.glob("*.safetensors"):
        tensors |= {name: tensor.astype(np.float32) for name, tensor in load_file(file).items()}
    for path, change in changes(adapter, scales):
        tensors[f"{path}.weight"] = (tensors[f"{path}.weight"] + change).astype(np.float32)
    save_file(tensors, output / "model.safetensors")
    return output
