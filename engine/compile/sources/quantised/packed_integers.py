"""Integers in larger words: GPTQ and AWQ (int32, as their libraries pack them), compressed-tensors, LLM.int8."""

import numpy as np
from numpy.typing import NDArray

from engine.compile.quantisation.methods.blocks import INT8_MIDDLE, Bytes
from engine.compile.sources.checkpoint import Float32, SafetensorsCheckpoint
from engine.compile.sources.quantised.matrices import IntegerMatrix, Integers
from engine.errors import CompileError, UnsupportedModel
from engine.models.stored_codes import StoredCodes

Words = NDArray[np.int32]
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where in a word the code of each of eight outputs lies
WORD = 32  # bits
INT8_STEPS = 127  # LLM.int8 keeps the largest magnitude of a row


def unpacked(words: Words, bits: int) -> Bytes:
    """[..., words] -> [..., words * 32 / bits], the lowest bits first."""
    content = np.ascontiguousarray(words).view(np.uint8)
    return content if bits == 8 else np.stack((content & 15, content >> 4), axis=-1).reshape(*content.shape[:-1], -1)


def gptq(file: SafetensorsCheckpoint, module: str, stored: StoredCodes) -> IntegerMatrix:
    """qweight [inputs / codes of a word, outputs], qzeros [groups, outputs / codes], scales [groups, outputs] and
    perhaps g_idx [inputs], as AutoGPTQ and GPTQModel write them."""
    weight, zeros, scales, index = (f"{module}.{part}" for part in ("qweight", "qzeros", "scales", "g_idx"))
    bits, (words, outputs) = stored.bits, _two_axes(file, weight)
    groups = None
    inputs = words * WORD // bits
    if index in file:
        groups = file.codes(index).astype(np.int64)
        if len(groups) != inputs:
            raise UnsupportedModel(f"tensor {weight} has other codes than those of {bits} bits")
    count = _two_axes(file, scales)[0]
    if groups is not None and (groups.min() < 0 or groups.max() >= count):
        raise CompileError(f"tensor {index} names a group that {scales} does not have")
    per_word, mask = WORD // bits, np.uint8((1 << bits) - 1)
    middle = 1 << (bits - 1)

    def points(start: int, stop: int) -> Bytes:
        first = start // per_word
        found = unpacked(file.codes(zeros, columns=slice(first, -(-stop // per_word))), bits)
        found = (found + np.uint8(1)) & mask if stored.has_zeros_less_one else found
        return found[:, start - first * per_word : stop - first * per_word].T

    has_points = bool((points(0, outputs) != middle).any())

    def read(start: int, stop: int) -> Integers:
        codes = unpacked(np.ascontiguousarray(file.codes(weight, columns=slice(start, stop)).T), bits)
        steps = _floats(file.codes(scales, columns=slice(start, stop)).T)
        return Integers(codes, steps, points(start, stop) if has_points else None)

    names = tuple(name for name in (weight, zeros, scales, index) if name in file)
    return IntegerMatrix(names, (outputs, inputs), bits, -(-inputs // count), has_points, read, groups)


def awq(file: SafetensorsCheckpoint, module: str, stored: StoredCodes) -> IntegerMatrix:
    """qweight [inputs, outputs / 8], qzeros [groups, outputs / 8], scales [groups, outputs]; a word holds eight outputs
    in the order of AutoAWQ's gemm."""
    weight, zeros, scales = (f"{module}.{part}" for part in ("qweight", "qzeros", "scales"))
    inputs, words = _two_axes(file, weight)
    count, outputs = _two_axes(file, scales)
    if outputs != words * 8 or inputs % count:
        raise CompileError(f"tensor {scales} has a shape that does not go with {weight}")

    def columns(name: str, start: int, stop: int) -> Bytes:
        first = start // 8
        found = unpacked(file.codes(name, columns=slice(first, -(-stop // 8))), 4)
        found = found.reshape(len(found), -1, 8)[:, :, AWQ_ORDER].reshape(len(found), -1)
        return np.ascontiguousarray(found[:, start - first * 8 : stop - first * 8].T)

    def read(start: int, stop: int) -> Integers:
        steps = _floats(file.codes(scales, columns=slice(start, stop)).T)
        points = columns(zeros, start, stop) if zeros in file else None
        return Integers(columns(weight, start, stop), steps, points)

    names = tuple(name for name in (weight, zeros, scales) if name in file)
    return IntegerMatrix(names, (outputs, inputs), stored.bits, inputs // count, zeros in file, read)


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
    per_word = WORD // bits

    def points(start: int, stop: int) -> Bytes:
        first = start // per_word
        found = unpacked(file.codes(zeros, rows=slice(first, -(-stop // per_word))).T, bits)
        return found[:, start - first * per_word : stop - first * per_word].T

    def read(start: int, stop: int) -> Integers:
        codes = unpacked(file.codes(weight, rows=slice(start, stop)), bits)[:, :inputs]
        steps = _floats(file.codes(scales, rows=slice(start, stop)))
        return Integers(codes, steps, points(start, stop) if zeros in file else None)

    names = tuple(name for name in (weight, scales, shape, zeros, index) if name in file)
    group = -(-inputs // _two_axes(file, scales)[1])
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

    names = tuple(name for name in (weight, source, zeros) if name in file)
    return IntegerMatrix(names, (outputs, inputs), 8, -(-inputs // spread(source).shape[1]), zeros in file, read)


def _around_128(signed: NDArray[np.generic]) -> Bytes:
    return np.ascontiguousarray(signed.astype(np.int8)).view(np.uint8) ^ np.uint8(INT8_MIDDLE)


def _two_axes(file: SafetensorsCheckpoint, name: str) -> tuple[int, int]:
    shape = file.shape(name)
    if len(shape) != 2 or 0 in shape:
        raise CompileError(f"tensor {name} has shape {shape}, it must be a matrix")
    return shape[0], shape[1]


def _floats(values: NDArray[np.generic]) -> Float32:
    return np.ascontiguousarray(values).astype(np.float32)
