"""What the libraries that define formats make of matrices: `rounding.py IN FOLDER CASE...`, all safetensors.

Runs in a process of its own: the libraries need torch and lie in a folder that PYTHONPATH names.
"""

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Tensors = dict[str, torch.Tensor]
GROUP = {"strategy": "group", "group_size": 32}
# The format, what `QuantizationArgs` gets.
COMPRESSED: dict[str, tuple[str, dict[str, Any]]] = {
    "packed-4": ("pack-quantized", {"num_bits": 4, **GROUP}),
    "packed-4-asymmetric": ("pack-quantized", {"num_bits": 4, "symmetric": False, **GROUP}),
    "packed-4-channel": ("pack-quantized", {"num_bits": 4, "strategy": "channel"}),
    "packed-8": ("pack-quantized", {"num_bits": 8, **GROUP}),
    "int-8-channel": ("int-quantized", {"num_bits": 8, "strategy": "channel"}),
    "int-8-group": ("int-quantized", {"num_bits": 8, **GROUP}),
    "int-8-asymmetric": ("int-quantized", {"num_bits": 8, "symmetric": False, "strategy": "channel"}),
    "float-8-channel": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "channel"}),
    "float-8-tensor": ("naive-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    "float-8-block": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "block"}),
    "float-4-nv": ("nvfp4-pack-quantized", {"num_bits": 4, "type": "float", "strategy": "tensor_group"}),
    "float-4-mx": ("mxfp4-pack-quantized", {"num_bits": 4, "type": "float", **GROUP}),
}
BLOCK = 32  # outputs and inputs of a tile


def compressed(case: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """The library's own scales, codes and floats."""
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    form, told = COMPRESSED[case]
    given = dict(told)
    parts = weight.unflatten(1, (-1, 32))
    if told["strategy"] == "block":
        given["block_structure"] = [BLOCK, BLOCK]
        tiles = weight.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
        low, high = tiles.amin((1, 3)), tiles.amax((1, 3))
    elif told["strategy"] == "tensor":
        low, high = weight.min().reshape(1), weight.max().reshape(1)
    elif told["strategy"] == "channel":
        low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
    else:
        parts = weight.unflatten(1, (-1, 16)) if form.startswith("nv") else parts
        low, high = parts.amin(2), parts.amax(2)
    state: Tensors = {"weight": weight}
    common = None
    if form.startswith("nv"):
        given |= {"group_size": 16, "scale_dtype": torch.float8_e4m3fn}
        common = state["weight_global_scale"] = generate_gparam(weight.min(), weight.max()).reshape(1)
    elif form.startswith("mx"):
        given |= {"scale_dtype": torch.uint8}
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**given))
    scales, zeros = calculate_qparams(low, high, scheme.weights, global_scale=common)
    state |= {"weight_scale": scales.float(), "weight_zero_point": zeros.to(torch.int8)}
    library = BaseCompressor.get_value_from_registry(form)
    stored = library.compress(state, scheme)
    meant = library.decompress(stored, scheme)["weight"].float()
    return {name: tensor.contiguous() for name, tensor in stored.items()}, meant


def packed_by_auto_gptq(case: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Zero points less one, act-order by an order of chance. What is meant is what the layer multiplies with."""
    bits, mixed = (8 if "8" in case else 4), "mixed" in case
    layer_kind = _gptq_module().QuantLinear
    outputs, inputs = weight.shape
    groups = torch.arange(inputs) // 32
    groups = groups[torch.randperm(inputs, generator=torch.Generator().manual_seed(5))] if mixed else groups
    most = (1 << bits) - 1
    parts = torch.stack([weight[:, groups == each] for each in range(inputs // 32)], dim=1)
    low, high = parts.amin(2).clamp(max=0), parts.amax(2).clamp(min=0)
    scales = ((high - low) / most).half().float()
    zeros = (-low / scales).round().clamp(1, most)
    codes = (weight / scales[:, groups] + zeros[:, groups]).round().clamp(0, most)
    linear = torch.nn.Linear(inputs, outputs, bias=False)
    linear.weight.data = (codes - zeros[:, groups]) * scales[:, groups]
    layer = layer_kind(bits, 32, inputs, outputs, False)
    layer.pack(linear, scales, zeros, groups)
    stored = {name: getattr(layer, name).contiguous() for name in ("qweight", "qzeros", "scales", "g_idx")}
    product = layer.float()(torch.eye(inputs))  # scales in half precision would round the product
    return stored | {"scales": stored["scales"].half()}, product.T.float()


def _gptq_module() -> ModuleType:
    """The one file: the package around it imports what is not installed."""
    place = importlib.util.find_spec("auto_gptq")
    assert place is not None and place.origin is not None
    path = Path(place.origin).parent / "nn_modules" / "qlinear" / "qlinear_cuda.py"
    found = importlib.util.spec_from_file_location("qlinear", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def packed_by_auto_awq(case: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Packed by the library's layer, and what its definition without kernels makes of it."""
    for name in ("awq", "awq.utils", "awq.modules", "awq.modules.linear"):
        _without_contents(name)
    beside = ModuleType("awq.utils.utils")  # which imports what is not installed
    vars(beside)["get_best_device"] = lambda: "cpu"
    sys.modules[beside.__name__] = beside
    gemm, packing = (importlib.import_module(f"awq.{name}") for name in ("modules.linear.gemm", "utils.packing_utils"))
    outputs, inputs = weight.shape
    parts = weight.unflatten(1, (-1, 32))
    low, high = parts.amin(2).clamp(max=0), parts.amax(2).clamp(min=0)
    scales = ((high - low) / 15).half().float()
    zeros = (-low / scales).round().clamp(0, 15)
    codes = (parts / scales[..., None] + zeros[..., None]).round().clamp(0, 15)
    linear = torch.nn.Linear(inputs, outputs, bias=False)
    linear.weight.data = ((codes - zeros[..., None]) * scales[..., None]).flatten(1)
    layer = gemm.WQLinear_GEMM.from_linear(linear, 4, 32, scales=scales.T, zeros=zeros.T)
    stored = {name: getattr(layer, name).contiguous() for name in ("qweight", "qzeros", "scales")}
    return stored, packing.dequantize_gemm(layer.qweight, layer.qzeros, layer.scales.float(), 4, 32).T


def _without_contents(name: str) -> None:
    """A package whose modules can be imported without its own beginning, which imports what is not installed."""
    if name not in sys.modules:
        found = importlib.machinery.PathFinder.find_spec(name, _places(name))
        assert found is not None and found.submodule_search_locations is not None
        package = ModuleType(name)
        package.__path__ = list(found.submodule_search_locations)
        sys.modules[name] = package


def _places(name: str) -> list[str]:
    parent = name.rpartition(".")[0]
    return list(sys.modules[parent].__path__) if parent else sys.path


def table4(case: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """bitsandbytes: codes of a table, with scales that are codes themselves or not."""
    from bitsandbytes.functional import dequantize_4bit, quantize_4bit

    kind, is_nested = case.removesuffix("-nested"), case.endswith("-nested")
    packed, state = quantize_4bit(weight, blocksize=64, compress_statistics=is_nested, quant_type=kind)
    stored = {"weight": packed} | {f"weight.{name}": each for name, each in state.as_dict(packed=True).items()}
    return stored, dequantize_4bit(packed, state).float()


def rows8(case: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """LLM.int8: bytes and the largest magnitude of each row."""
    from bitsandbytes.functional import int8_vectorwise_dequant, int8_vectorwise_quant

    codes, largest, _ = int8_vectorwise_quant(weight.half())
    stored = {"weight": codes, "SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return stored, int8_vectorwise_dequant(codes, largest).float()


def tiles(case: str, weight: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Tiles of 64 x 64 as DeepSeek writes them, in the floats of transformers."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    parts = weight.unflatten(0, (-1, 64)).unflatten(2, (-1, 64))
    scales = parts.abs().amax((1, 3)) / 448
    codes = (parts / scales[:, None, :, None]).flatten(2).flatten(0, 1).to(torch.float8_e4m3fn)
    stored = {"weight": codes, "weight_scale_inv": scales}
    return stored, Fp8Dequantize(None).convert(dict(stored))["weight"]


MAKERS = {
    "tiles": tiles,
    "gptq": packed_by_auto_gptq,
    "awq": packed_by_auto_awq,
    "nf4": table4,
    "fp4": table4,
    "int8": rows8,
}


def main(source: str, folder: str, *cases: str) -> None:
    """Every matrix of the file, by each case."""
    matrices = {name: weight.float() for name, weight in load_file(source).items()}
    for case in cases:
        stored, meant = rounded(case, matrices)
        save_file(stored, Path(folder) / f"{case}.stored")
        save_file(meant, Path(folder) / f"{case}.meant")


def rounded(case: str, matrices: Tensors) -> tuple[Tensors, Tensors]:
    """Codes, and the floats that are meant."""
    make = compressed if case in COMPRESSED else MAKERS[case.split("-", maxsplit=1)[0]]
    tensors: Tensors = {}
    meant: Tensors = {}
    for name, weight in matrices.items():
        stored, floats = make(case, weight)
        module = name.removesuffix(".weight")
        tensors |= {f"{module}.{part}": tensor for part, tensor in stored.items()}
        meant[name] = floats.contiguous()
    return tensors, meant


if __name__ == "__main__":
    main(*sys.argv[1:])
