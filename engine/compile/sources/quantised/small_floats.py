"""Floats of 4 and 8 bits: FP8 with one scale, one for each output or for tiles; MXFP4, NVFP4; bitsandbytes' NF4."""

import json

import numpy as np
from numpy.typing import NDArray

from engine.compile.quantisation.methods.blocks import INT8_MIDDLE, Bytes, unpack_nibbles
from engine.compile.sources.checkpoint import Float32, SafetensorsCheckpoint
from engine.compile.sources.quantised.matrices import FloatCodes, IntegerMatrix, Integers
from engine.errors import CompileError
from engine.models.stored_codes import StoredCodes

# E2M1 by code: sign, two bits of exponent, one of mantissa. Twice the values, so that they are integers.
E2M1_TWICE = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
E8M0_BIAS = 127
MX_BLOCK = 32


def float8(file: SafetensorsCheckpoint, module: str, stored: StoredCodes) -> FloatCodes:
    """weight [outputs, inputs] with weight_scale_inv or weight_scale: a number, [outputs, 1], or one for each tile of
    outputs and inputs (DeepSeek, Qwen: 128 x 128). `inv` notwithstanding, weights are multiplied with it."""
    weight = f"{module}.weight"
    scale = next((name for name in (f"{weight}_scale_inv", f"{weight}_scale") if name in file), "")
    if not scale:
        raise CompileError(f"tensor {weight} has type {file.type_of(weight)} and no scale beside it")
    outputs, inputs = file.shape(weight)
    steps = file.codes(scale).astype(np.float32)
    steps = steps.reshape(steps.size if steps.ndim < 2 else len(steps), -1)
    whole = tuple(-(-size // count) for size, count in zip((outputs, inputs), steps.shape, strict=True))
    tile = next((tile for tile in (stored.tile, whole) if tile and _tiles((outputs, inputs), tile) == steps.shape), ())
    if not tile:
        raise CompileError(f"tensor {scale} has shape {steps.shape}, which does not go with {weight}")

    def floats(start: int, stop: int) -> Float32:
        values = file.codes(weight, rows=slice(start, stop)).astype(np.float32)
        rows = steps[np.arange(start, stop) // tile[0]]
        return np.asarray(values * rows[:, np.arange(inputs) // tile[1]], np.float32)

    return FloatCodes((weight, scale), (outputs, inputs), floats)


def _tiles(shape: tuple[int, int], tile: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(-(-size // each) for size, each in zip(shape, tile, strict=True))


def float4(file: SafetensorsCheckpoint, module: str) -> IntegerMatrix:
    """Codes of E2M1, low nibble first, and scales: E8M0 for 32 inputs (MXFP4), or E4M3 for 16 and one number for all
    (NVFP4: compressed-tensors divides by weight_global_scale, ModelOpt multiplies with weight_scale_2)."""
    weight = next(name for name in (f"{module}.weight_packed", f"{module}.weight") if name in file)
    scale, divisor, factor = (f"{module}.weight_{part}" for part in ("scale", "global_scale", "scale_2"))
    outputs, half = file.shape(weight)
    groups = file.shape(scale)[1]
    common = np.float32(1)
    if divisor in file:
        common = np.float32(1) / np.float32(file.codes(divisor).reshape(-1)[0])
    elif factor in file:
        common = np.float32(file.codes(factor).reshape(-1)[0])

    def read(start: int, stop: int) -> Integers:
        codes = e2m1_codes(file.codes(weight, rows=slice(start, stop)))
        stored = file.codes(scale, rows=slice(start, stop))
        steps = e8m0(stored) if stored.dtype == np.uint8 else stored.astype(np.float32)
        return Integers(codes, np.asarray(steps * common / 2, np.float32), None)

    names = tuple(name for name in (weight, scale, divisor, factor) if name in file)
    return IntegerMatrix(names, (outputs, 2 * half), 8, 2 * half // groups, False, read)


def stacked_float4(file: SafetensorsCheckpoint, module: str) -> IntegerMatrix:
    """Of all experts: `_blocks` [experts, outputs, groups, 16], low nibble first, and `_scales` [experts, outputs,
    groups] of E8M0, as gpt-oss is published."""
    blocks, scales = f"{module}_blocks", f"{module}_scales"
    shape = file.shape(blocks)
    if len(shape) != 4 or shape[3] != MX_BLOCK // 2 or file.shape(scales) != shape[:3]:
        raise CompileError(f"tensors {blocks} and {scales} have shapes {shape} and {file.shape(scales)}, not of MXFP4")
    count, outputs, groups, _ = shape

    def read(start: int, stop: int) -> Integers:
        packed, steps = (file.codes(name, rows=slice(start, stop)) for name in (blocks, scales))
        codes = e2m1_codes(packed).reshape(-1, groups * MX_BLOCK)
        return Integers(codes, (e8m0(steps) / np.float32(2)).reshape(-1, groups), None)

    return IntegerMatrix((blocks, scales), (count, outputs, groups * MX_BLOCK), 8, MX_BLOCK, False, read)


def e2m1_codes(packed: Bytes) -> Bytes:
    """Bytes of two codes of E2M1 as codes of 8 bits around 128: twice the values."""
    return (E2M1_TWICE[unpack_nibbles(packed)] + np.int16(INT8_MIDDLE)).astype(np.uint8)


def e8m0(exponents: Bytes) -> Float32:
    """Powers of two: 2 ** (exponent - 127)."""
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - E8M0_BIAS).astype(np.float32)


def table4(file: SafetensorsCheckpoint, module: str) -> FloatCodes:
    """NF4 and FP4 of bitsandbytes: codes of a table, high nibble first, and the largest magnitude of each block, which
    may itself be codes of a table with blocks of its own."""
    weight = f"{module}.weight"
    kind = next((kind for kind in ("nf4", "fp4") if f"{weight}.quant_state.bitsandbytes__{kind}" in file), "")
    if not kind:
        raise CompileError(f"tensor {weight} has type U8 and no quant_state beside it")
    state_name, table_name, largest_name = (
        f"{weight}.{part}" for part in (f"quant_state.bitsandbytes__{kind}", "quant_map", "absmax")
    )
    state = json.loads(file.codes(state_name).tobytes())
    outputs, inputs = map(int, state["shape"])
    block = int(state["blocksize"])
    table = file.codes(table_name).astype(np.float32)
    names = [weight, state_name, table_name, largest_name]
    largest: NDArray[np.generic] = file.codes(largest_name)
    if "nested_blocksize" in state:
        nested = (f"{weight}.nested_quant_map", f"{weight}.nested_absmax")
        steps = np.repeat(file.codes(nested[1]).astype(np.float32), int(state["nested_blocksize"]))[: largest.size]
        largest = file.codes(nested[0])[largest] * steps + np.float32(state["nested_offset"])
        names += nested
    steps_of = largest.astype(np.float32)

    def floats(start: int, stop: int) -> Float32:
        first, last = start * inputs, stop * inputs
        packed = file.codes(weight, rows=slice(first // 2, -(-last // 2))).reshape(-1)
        codes = np.stack((packed >> 4, packed & 15), axis=-1).reshape(-1)[first % 2 :][: last - first]
        values = table[codes] * steps_of[np.arange(first, last) // block]
        return values.reshape(stop - start, inputs)

    return FloatCodes(tuple(names), (outputs, inputs), floats)
