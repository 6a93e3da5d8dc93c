"""A matrix of codes, whatever file it comes from: as blocks that `MatMulNBits` holds, and as floats."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.compile.quantisation.methods.blocks import INT8_MIDDLE, KEPT_BLOCK, BlockForm, Blocks, Bytes, unpack_nibbles
from engine.compile.sources.checkpoint import FLOAT8, Float32, SafetensorsCheckpoint
from engine.errors import CompileError, UnsupportedModel
from engine.models.stored_codes import CodeFormat, StoredCodes

LEAST_BLOCK = 16  # of the operator
LARGEST_BLOCKS = {4: 128, 8: KEPT_BLOCK}  # by bits: 8 are for little loss, and small blocks round activations less


class Integers(NamedTuple):
    """Rows of a matrix: codes [rows, inputs]; scales and zero points [rows, groups]. points: None = the middle."""

    codes: Bytes
    scales: Float32
    points: Bytes | None


@dataclass(frozen=True)
class IntegerMatrix:
    """(code - zero point) * scale. names: of tensors, as far as there are such. group: inputs that share a scale.
    read(start, stop): rows. Rows of a stack of matrices are whole matrices: `read` gives the rows of those, one behind
    the other. groups: [inputs], the group of each input where they do not follow each other. has_points: any differs
    from the middle."""

    names: tuple[str, ...]
    shape: tuple[int, ...]
    bits: int
    group: int
    has_points: bool
    read: Callable[[int, int], Integers]
    groups: NDArray[np.int64] | None = None

    @cached_property
    def form(self) -> BlockForm | None:
        """None where the operator cannot hold the groups: they are too small, or of several sizes."""
        block = self._block
        if block < LEAST_BLOCK:
            return None
        regular = np.arange(self.shape[-1]) // self.group
        if self.groups is None or np.array_equal(self.groups, regular):
            return BlockForm(self.bits, block, self.has_points)
        order = np.argsort(self.groups, kind="stable")
        if not np.array_equal(self.groups[order], regular):
            return None
        return BlockForm(self.bits, block, self.has_points, order.astype(np.int64).tobytes())

    def blocks(self, start: int, stop: int) -> Blocks | None:
        """Rows in the order of inputs that `form` tells."""
        form, rows = self.form, self.read(start, stop)
        if form is None:
            return None
        places, block = form.places(), form.block
        codes, inputs = rows.codes if places is None else rows.codes[:, places], self.shape[-1]
        count = -(-inputs // block)
        share = count if self.group >= inputs else self.group // block
        scales = np.repeat(rows.scales, share, axis=1)[:, :count]
        codes = np.pad(codes, ((0, 0), (0, count * block - inputs))).reshape(len(codes), count, block)
        points = rows.points if form.has_zero_points else None
        return Blocks(self.bits, codes, scales, points if points is None else np.repeat(points, share, 1)[:, :count])

    def floats(self, start: int, stop: int) -> Float32:
        """Rows in the inputs' own order."""
        rows = self.read(start, stop)
        groups = np.arange(self.shape[-1]) // self.group if self.groups is None else self.groups
        values = rows.codes.astype(np.float32)
        values -= np.float32(1 << (self.bits - 1)) if rows.points is None else rows.points[:, groups]
        values *= rows.scales[:, groups]
        return values

    @property
    def _block(self) -> int:
        """The largest power of two that divides a group; of a whole row that none divides, as large as may be."""
        largest, inputs = LARGEST_BLOCKS[self.bits], self.shape[-1]
        divisor = min(self.group, inputs) & -min(self.group, inputs)
        return min(largest, divisor) if self.group < inputs or divisor >= LEAST_BLOCK else largest


@dataclass(frozen=True, slots=True)
class FloatCodes:
    """Codes that are no integers: only the floats they stand for can be read. floats(start, stop): rows."""

    names: tuple[str, ...]
    shape: tuple[int, int]
    floats: Callable[[int, int], Float32]
    form: None = None

    def blocks(self, start: int, stop: int) -> None:
        """There are none."""


StoredMatrix = IntegerMatrix | FloatCodes


Words = NDArray[np.int32]
AWQ_ORDER = np.array((0, 4, 1, 5, 2, 6, 3, 7))  # where in a word the code of each of eight outputs lies
ALL = slice(None)
WORD = 32  # bits
INT8_STEPS = 127  # LLM.int8 keeps the largest magnitude of a row


def unpacked(words: Words, bits: int) -> Bytes:
    """[..., words] -> [..., words * 32 / bits], the lowest bits first."""
    content = np.ascontiguousarray(words).view(np.uint8)
    return content if bits == 8 else unpack_nibbles(content)


def _of_outputs(
    read: Callable[[slice], Words], bits: int, start: int, stop: int, order: slice | NDArray[np.int64] = ALL
) -> Bytes:
    """[stop - start, ...] of words that hold several outputs each. read(words): some of them [..., words]. order: where
    in a word each output lies."""
    size = WORD // bits
    first = start // size
    found = unpacked(read(slice(first, -(-stop // size))), bits)
    found = found.reshape(len(found), -1, size)[:, :, order].reshape(len(found), -1)
    return np.ascontiguousarray(found[:, start - first * size : stop - first * size].T)


def gptq(file: SafetensorsCheckpoint, module: str, stored: StoredCodes) -> IntegerMatrix:
    """qweight [inputs / codes of a word, outputs], qzeros [groups, outputs / codes], scales [groups, outputs] and
    perhaps g_idx [inputs], as AutoGPTQ and GPTQModel write them."""
    weight, zeros, scales, index = (f"{module}.{part}" for part in ("qweight", "qzeros", "scales", "g_idx"))
    bits, (words, outputs) = stored.bits, _two_axes(file, weight)
    groups, inputs = None, words * WORD // bits
    if index in file:
        groups = file.codes(index).astype(np.int64)
        if len(groups) != inputs:
            raise UnsupportedModel(f"tensor {weight} has other codes than those of {bits} bits")
    count = _two_axes(file, scales)[0]
    if groups is not None and (groups.min() < 0 or groups.max() >= count):
        raise CompileError(f"tensor {index} names a group that {scales} does not have")

    def points(start: int, stop: int) -> Bytes:
        found = _of_outputs(lambda words: file.codes(zeros, columns=words), bits, start, stop)
        return (found + np.uint8(1)) & np.uint8((1 << bits) - 1) if stored.has_zeros_less_one else found

    has_points = bool((points(0, outputs) != 1 << (bits - 1)).any())

    def read(start: int, stop: int) -> Integers:
        codes = unpacked(np.ascontiguousarray(file.codes(weight, columns=slice(start, stop)).T), bits)
        steps = _floats(file.codes(scales, columns=slice(start, stop)).T)
        return Integers(codes, steps, points(start, stop) if has_points else None)

    names, group = (weight, zeros, scales, index), -(-inputs // count)
    return IntegerMatrix(names, (outputs, inputs), bits, group, has_points, read, groups)


def awq(file: SafetensorsCheckpoint, module: str, stored: StoredCodes) -> IntegerMatrix:
    """qweight [inputs, outputs / 8], qzeros [groups, outputs / 8], scales [groups, outputs]; a word holds eight outputs
    in the order of AutoAWQ's gemm."""
    weight, zeros, scales = (f"{module}.{part}" for part in ("qweight", "qzeros", "scales"))
    inputs, words = _two_axes(file, weight)
    count, outputs = _two_axes(file, scales)
    if outputs != words * 8 or inputs % count:
        raise CompileError(f"tensor {scales} has a shape that does not go with {weight}")

    def columns(name: str, start: int, stop: int) -> Bytes:
        return _of_outputs(lambda words: file.codes(name, columns=words), 4, start, stop, AWQ_ORDER)

    def read(start: int, stop: int) -> Integers:
        steps = _floats(file.codes(scales, columns=slice(start, stop)).T)
        points = columns(zeros, start, stop) if zeros in file else None
        return Integers(columns(weight, start, stop), steps, points)

    group, names = inputs // count, (weight, zeros, scales)
    return IntegerMatrix(names, (outputs, inputs), stored.bits, group, zeros in file, read)


def pack_quantized(file: SafetensorsCheckpoint, module: str) -> IntegerMatrix:
    """weight_packed [outputs, inputs / codes of a word], weight_scale [outputs, groups], weight_shape, and perhaps
    weight_zero_point [outputs / codes, groups] and weight_g_idx, as compressed-tensors writes them."""
    weight, scales, shape, zeros, index = (
        f"{module}.weight_{part}" for part in ("packed", "scale", "shape", "zero_point", "g_idx")
    )
    outputs, inputs = map(int, file.codes(shape))
    words = _two_axes(file, weight)[1]
    bits = next((bits for bits in (4, 8) if words == -(-inputs * bits // WORD)), 0)
    if not bits:
        raise UnsupportedModel(f"tensor {weight} has other codes than those of 4 or 8 bits")
    groups = file.codes(index).astype(np.int64) if index in file else None
    if groups is not None and (groups < 0).any():
        groups = None  # -1: inputs were not put in another order

    def read(start: int, stop: int) -> Integers:
        codes = unpacked(file.codes(weight, rows=slice(start, stop)), bits)[:, :inputs]
        steps, points = _floats(file.codes(scales, rows=slice(start, stop))), None
        if zeros in file:
            points = _of_outputs(lambda words: file.codes(zeros, rows=words).T, bits, start, stop)
        return Integers(codes, steps, points)

    names, group = (weight, scales, shape, zeros, index), -(-inputs // _two_axes(file, scales)[1])
    return IntegerMatrix(names, (outputs, inputs), bits, group, zeros in file, read, groups)


def signed_bytes(file: SafetensorsCheckpoint, module: str) -> IntegerMatrix:
    """weight [outputs, inputs] (two's complement) with weight_scale ([outputs or 1, groups], or one number) and perhaps
    weight_zero_point: int-quantized of compressed-tensors. With SCB [outputs] instead: LLM.int8 of bitsandbytes."""
    weight, largest = f"{module}.weight", f"{module}.SCB"
    scales, zeros = f"{weight}_scale", f"{weight}_zero_point"
    outputs, inputs = _two_axes(file, weight)
    is_llm = scales not in file
    source = largest if is_llm else scales

    def spread(name: str) -> NDArray[np.generic]:
        values = file.codes(name)
        values = values.reshape(values.size if values.ndim < 2 else len(values), -1)
        return np.broadcast_to(values, (outputs, values.shape[1]))

    def read(start: int, stop: int) -> Integers:
        steps = _floats(spread(source)[start:stop]) / np.float32(INT8_STEPS if is_llm else 1)
        points = _around_128(spread(zeros)[start:stop]) if zeros in file else None
        return Integers(_around_128(file.codes(weight, rows=slice(start, stop))), steps, points)

    group = -(-inputs // spread(source).shape[1])
    return IntegerMatrix((weight, source, zeros), (outputs, inputs), 8, group, zeros in file, read)


def _around_128(signed: NDArray[np.generic]) -> Bytes:
    return np.ascontiguousarray(signed.astype(np.int8)).view(np.uint8) ^ np.uint8(INT8_MIDDLE)


def _two_axes(file: SafetensorsCheckpoint, name: str) -> tuple[int, int]:
    shape = file.shape(name)
    if len(shape) != 2 or 0 in shape:
        raise CompileError(f"tensor {name} has shape {shape}, it must be a matrix")
    return shape[0], shape[1]


def _floats(values: NDArray[np.generic]) -> Float32:
    return np.ascontiguousarray(values).astype(np.float32)


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
    counts = list(zip((outputs, inputs), steps.shape, strict=True))
    whole = tuple(size // count for size, count in counts) if not any(size % count for size, count in counts) else ()
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

    return IntegerMatrix((weight, scale, divisor, factor), (outputs, 2 * half), 8, 2 * half // groups, False, read)


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
    largest: NDArray[np.generic] = file.codes(largest_name)
    nested = (f"{weight}.nested_quant_map", f"{weight}.nested_absmax")
    if "nested_blocksize" in state:
        steps = np.repeat(file.codes(nested[1]).astype(np.float32), int(state["nested_blocksize"]))[: largest.size]
        largest = file.codes(nested[0])[largest] * steps + np.float32(state["nested_offset"])
    steps_of = largest.astype(np.float32)

    def floats(start: int, stop: int) -> Float32:
        first, last = start * inputs, stop * inputs
        packed = file.codes(weight, rows=slice(first // 2, -(-last // 2))).reshape(-1)
        codes = np.stack((packed >> 4, packed & 15), axis=-1).reshape(-1)[first % 2 :][: last - first]
        values = table[codes] * steps_of[np.arange(first, last) // block]
        return values.reshape(stop - start, inputs)

    return FloatCodes((weight, state_name, table_name, largest_name, *nested), (outputs, inputs), floats)


def opened(file: SafetensorsCheckpoint, module: str, stored: StoredCodes) -> StoredMatrix | None:
    """By the tensors that stand under a module's name; None for floats."""
    weight = f"{module}.weight"
    if f"{module}.qweight" in file:
        return (awq if stored.format is CodeFormat.AWQ else gptq)(file, module, stored)
    if f"{weight}_packed" in file:
        return (float4 if file.type_of(f"{weight}_packed") == "U8" else pack_quantized)(file, module)
    if f"{module}_blocks" in file:
        return stacked_float4(file, module)
    kind = file.type_of(weight) if weight in file else ""
    if kind == "I8":
        return signed_bytes(file, module)
    if kind == "U8":
        return float4(file, module) if f"{weight}_scale" in file else table4(file, module)
    return float8(file, module, stored) if kind in FLOAT8 else None
