"""From a checkpoint's experts to the tensors of the operators, one expert in memory at a time."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from engine.compile.arguments import CompileArguments
from engine.compile.quantisation.linear_packer import LinearPacker
from engine.compile.quantisation.methods.blocks import BlockForm
from engine.compile.quantisation.methods.integer_blocks import as_int4_blocks, int8_blocks
from engine.compile.quantisation.methods.method import Pieces, StoredMatrix
from engine.compile.quantisation.methods.table import method_of
from engine.compile.quantisation.packed import PackedStack
from engine.compile.quantisation.weight_file import WeightFile, ahead
from engine.compile.sources.experts import ExpertTensors, Piece
from engine.errors import CompileError

Values = NDArray[Any]


def stored_rows(form: BlockForm, pieces: Pieces) -> list[Values]:
    """Weight, scales and zero points, as far as there are such, of a matrix, or of two whose rows take turns."""
    parts = [_one(form, piece) for piece in pieces]
    return parts[0] if len(parts) == 1 else [in_turns(*rows) for rows in zip(*parts, strict=True)]


def _one(form: BlockForm, piece: Piece) -> list[Values]:
    if isinstance(piece, np.ndarray):
        if not form.block:
            return [piece]
        inputs = piece.shape[1]
    else:
        inputs = piece.scales.shape[1] * piece.block
    if form.bits == 8:
        blocks = int8_blocks(piece, inputs, form.block, form.has_zero_points)
    else:
        blocks = as_int4_blocks(piece, inputs, form)
    points = blocks.stored_points()
    return [blocks.stored().reshape(len(blocks.codes), -1), blocks.scales, *([] if points is None else [points])]


def in_turns(first: Values, second: Values) -> Values:
    """The first row of one, the first of the other, the second of one, and so on."""
    return np.stack((first, second), axis=1).reshape(-1, *first.shape[1:])


def pack_experts(
    packer: LinearPacker, file: WeightFile, small: WeightFile, layer: int
) -> tuple[PackedStack, PackedStack]:
    """Gate and up, and down, which holds the factors of what is routed. Biases go into `small`."""
    network, details = packer.network, packer.network.details
    experts = details.experts
    assert experts is not None
    tensors, at, count = ExpertTensors(packer.checkpoint, network, layer), f"layer_{layer}_experts", experts.spec.count
    factor = tensors.scales() * np.float32(details.multipliers.residual * experts.routing.scale)
    hidden, ffn = network.spec.hidden, experts.spec.ffn
    numbers, keeps = range(count), not method_of(packer.arguments).is_exact
    gate_up = (tensors.kept_gate_up(expert) if keeps else tensors.gate_up(expert) for expert in numbers)

    def down() -> Iterator[Pieces]:
        for expert in numbers:
            packer.on_read(tensors.stored_bytes())
            yield (_scaled(tensors.kept_down(expert) if keeps else tensors.down(expert), factor[expert]),)

    first, last = tensors.kept_gate_up(0), (tensors.kept_down(0),)
    forms = _forms(packer.arguments, (first, hidden), (last, ffn))
    first_matrix = _store(file, f"{at}_gate_up", (count, len(first) * ffn, hidden), forms[0], gate_up)
    down_matrix = _store(file, f"{at}_down", (count, hidden, ffn), forms[1], down())
    first_bias = last_bias = None
    if biases := [each for each in map(tensors.biases, numbers) if each]:
        both, single = np.stack([in_turns(*each[:2]) for each in biases]), np.stack([each[2] for each in biases])
        first_bias = small.add(f"{at}_gate_up_bias", both)
        last_bias = small.add(f"{at}_down_bias", single * factor[:, None])
    return PackedStack(first_matrix, first_bias), PackedStack(down_matrix, last_bias)


def _scaled(piece: Piece, factor: np.float32) -> Piece:
    return piece * factor if isinstance(piece, np.ndarray) else piece.scaled(np.full((1, 1), factor, np.float32))


def _forms(arguments: CompileArguments, *stacks: tuple[Pieces, int]) -> list[BlockForm]:
    """What matrices of so many inputs are stored as: the operator knows one number of bits and one size of blocks.
    CompileError where inputs are not whole blocks, or there is no such form."""
    stack = method_of(arguments).stack
    if stack is None:
        raise CompileError(f"--quant {arguments.quant} has no form for experts")
    found = [stack(pieces, arguments) for pieces, _ in stacks]
    if len({form.bits for form in found}) > 1:  # codes of 8 bits have room for 4 bits around any zero point
        found = [replace(form, bits=8, has_zero_points=form.has_zero_points and form.bits == 8) for form in found]
    block = min(form.block for form in found)
    for inputs in (inputs for _, inputs in stacks if block and inputs % block):
        raise CompileError(f"experts with {inputs} inputs cannot be stored in blocks of {block}; take --quant fp32")
    return [replace(form, block=block) for form in found]


def _store(
    file: WeightFile, name: str, shape: tuple[int, int, int], form: BlockForm, pieces: Iterator[Pieces]
) -> StoredMatrix:
    count, outputs, inputs = shape
    others: list[list[Values]] = []

    def weights() -> Iterator[Values]:
        for weight, *rest in ahead(partial(stored_rows, form), pieces):
            others.append(rest)
            yield weight

    kind = onnx.TensorProto.UINT8 if form.block else onnx.TensorProto.FLOAT
    width = inputs * form.bits // 8 if form.block else inputs
    weight = file.add_chunks(f"{name}_weight", kind, (count, outputs, width), weights())
    scales, zeros = (
        file.add(f"{name}_{part}", np.stack([values[place] for values in others])) if len(others[0]) > place else None
        for place, part in enumerate(("scales", "zeros"))
    )
    return StoredMatrix(inputs, outputs, weight, scales, zeros, form.block, form.bits)
