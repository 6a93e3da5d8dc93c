"""Checkpoints with codes in place of weights, written from the documents of each format, and the floats they mean."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
LINEAR = ("_proj.weight",)


@dataclass(frozen=True)
class Codes:
    """codes [outputs, inputs]; scales and zeros [outputs, groups]; groups [inputs]."""

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    groups: torch.Tensor

    def floats(self) -> torch.Tensor:
        """(code - zero) * scale, as every one of these formats says."""
        return (self.codes - self.zeros[:, self.groups]) * self.scales[:, self.groups]


def rounded(weight: torch.Tensor, bits: int, group: int, is_symmetric: bool, is_mixed: bool = False) -> Codes:
    """The plainest choice of scales and zeros. is_mixed: inputs stand in groups in an order of chance (act-order)."""
    inputs = weight.shape[1]
    group = group if group > 0 else inputs
    groups = torch.arange(inputs) // group
    if is_mixed:
        groups = groups[torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs))]
    most, middle = (1 << bits) - 1, 1 << (bits - 1)
    members = [weight[:, groups == each] for each in range(int(groups.max()) + 1)]
    low = torch.stack([part.min(dim=1).values.clamp(max=0) for part in members], dim=1)
    high = torch.stack([part.max(dim=1).values.clamp(min=0) for part in members], dim=1)
    if is_symmetric:
        scales = torch.maximum(-low, high) / (middle - 1)
        zeros = torch.full_like(scales, middle)
    else:
        scales = (high - low) / most
        zeros = (-low / scales).round()
    scales = scales.half().float()
    codes = (weight / scales[:, groups] + zeros[:, groups]).round().clamp(0, most)
    return Codes(codes.int(), scales, zeros.int(), groups)


def in_words(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """[..., n] -> int32 [..., n * bits / 32], the lowest bits first."""
    parts = codes.long().reshape(*codes.shape[:-1], -1, 32 // bits)
    words = sum(parts[..., place] << (bits * place) for place in range(32 // bits))
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


def gptq(name: str, codes: Codes, bits: int, less: int) -> Tensors:
    """less: what is taken off zeros, 1 in the first format."""
    zeros = (codes.zeros - less) % (1 << bits)
    return {
        f"{name}.qweight": in_words(codes.codes, bits).T.contiguous(),
        f"{name}.qzeros": in_words(zeros.T, bits).contiguous(),
        f"{name}.scales": codes.scales.T.half().contiguous(),
        f"{name}.g_idx": codes.groups.int(),
    }


def awq(name: str, codes: Codes) -> Tensors:
    """Eight outputs in a word, in the order 0, 2, 4, 6, 1, 3, 5, 7."""

    def words(values: torch.Tensor) -> torch.Tensor:
        shuffled = values.reshape(len(values), -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(len(values), -1)
        return in_words(shuffled, 4).contiguous()

    return {
        f"{name}.qweight": words(codes.codes.T),
        f"{name}.qzeros": words(codes.zeros.T),
        f"{name}.scales": codes.scales.T.half().contiguous(),
    }


def pack_quantized(name: str, codes: Codes, bits: int) -> Tensors:
    """Zero points are packed along outputs."""
    return {
        f"{name}.weight_packed": in_words(codes.codes, bits).contiguous(),
        f"{name}.weight_scale": codes.scales.half(),
        f"{name}.weight_shape": torch.tensor(codes.codes.shape),
        f"{name}.weight_zero_point": in_words(codes.zeros.T, bits).T.contiguous(),
    }


def pack_symmetric(name: str, codes: Codes) -> Tensors:
    """Bytes around the middle, without zero points."""
    return {key: value for key, value in pack_quantized(name, codes, 8).items() if not key.endswith("zero_point")}


def int_quantized(name: str, codes: Codes) -> Tensors:
    """Bytes with a sign."""
    return {
        f"{name}.weight": (codes.codes - 128).to(torch.int8),
        f"{name}.weight_scale": codes.scales.half(),
        f"{name}.weight_zero_point": (codes.zeros - 128).to(torch.int8),
    }


@dataclass(frozen=True)
class Packing:
    """How matrices are rounded and written, and what config.json says of it."""

    config: Mapping[str, Any]
    write: Callable[[str, Codes], Tensors]
    bits: int
    group: int
    is_symmetric: bool
    is_mixed: bool = False

    def codes(self, weight: torch.Tensor) -> Codes:
        return rounded(weight, self.bits, self.group, self.is_symmetric, self.is_mixed)

    def store(self, name: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        """As `written` takes it."""
        codes = self.codes(weight)
        return self.write(name, codes), codes.floats()


_GPTQ: Mapping[str, Any] = {"quant_method": "gptq"}
_AWQ: Mapping[str, Any] = {"quant_method": "awq", "bits": 4, "version": "gemm"}
_PACKED: Mapping[str, Any] = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
_INTEGERS: Mapping[str, Any] = {"quant_method": "compressed-tensors", "format": "int-quantized"}


def packed_by_gptq(bits: int, group: int, is_symmetric: bool, is_mixed: bool = False, less: int = 1) -> Packing:
    config = {**_GPTQ, "bits": bits, "desc_act": is_mixed, "checkpoint_format": "gptq" if less else "gptq_v2"}
    return Packing(config, partial(gptq, bits=bits, less=less), bits, group, is_symmetric, is_mixed)


PACKINGS = {
    "gptq-sym": packed_by_gptq(4, 64, True),
    "gptq-asym": packed_by_gptq(4, 64, False),
    "gptq-v2": packed_by_gptq(4, 32, False, less=0),
    "gptq-whole-rows": packed_by_gptq(4, -1, True),
    "gptq-act-order": packed_by_gptq(4, 64, True, is_mixed=True),
    "gptq-act-order-asym": packed_by_gptq(4, 32, False, is_mixed=True, less=0),
    "gptq-8": packed_by_gptq(8, 64, True),
    "gptq-8-asym": packed_by_gptq(8, 64, False),
    "awq": Packing(_AWQ, awq, 4, 64, False),
    "packed-4": Packing(_PACKED, partial(pack_quantized, bits=4), 4, 32, False),
    "packed-8-sym": Packing(_PACKED, pack_symmetric, 8, 64, True),
    "packed-8": Packing(_PACKED, partial(pack_quantized, bits=8), 8, 64, False),
    "integers": Packing(_INTEGERS, int_quantized, 8, -1, True),
    "integers-asym": Packing(_INTEGERS, int_quantized, 8, -1, False),
}


def written(
    source: Path, target: Path, config: Mapping[str, Any], store: Callable[[str, torch.Tensor], tuple[Tensors, Any]]
) -> Tensors:
    """A copy of a folder whose linear layers are stored by `store`, which gives tensors and the floats they mean; what
    it returns is the checkpoint in these floats."""
    target.mkdir()
    tensors, meant = {}, {}
    for name, tensor in load_file(source / "model.safetensors").items():
        meant[name] = tensor
        if name.endswith(LINEAR):
            stored, meant[name] = store(name.removesuffix(".weight"), tensor.float())
            tensors |= stored
        else:
            tensors[name] = tensor
    save_file(tensors, target / "model.safetensors")
    for path in source.glob("*.json"):
        (target / path.name).write_bytes(path.read_bytes())
    told = json.loads((source / "config.json").read_text()) | {"quantization_config": dict(config)}
    (target / "config.json").write_text(json.dumps(told))
    return meant
