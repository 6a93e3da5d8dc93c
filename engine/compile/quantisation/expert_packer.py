"""From a checkpoint's experts to the tensors of the operators, one expert in memory at a time."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from engine.compile.arguments import CompileArguments
from engine.compile.quantisation.methods.blocks import BlockForm, Blocks, Float32
from engine.compile.quantisation.methods.integer_blocks import as_int4_blocks, int8_blocks
from engine.compile.quantisation.methods.method import Pieces, StackForm, StoredMatrix, ahead
from engine.compile.quantisation.methods.table import method_of
from engine.compile.quantisation.packed import PackedStack
from engine.compile.quantisation.weight_file import StoredTensor, WeightFile
from engine.compile.sources.checkpoint import Checkpoint
from engine.compile.sources.experts import ExpertTensors, Piece
from engine.errors import CompileError
from engine.models.network import Network

Values = NDArray[Any]


@dataclass(frozen=True, slots=True)
class StackRows:
    """A matrix [outputs, inputs] as the operator reads it, or rows of it that take turns with others."""

    weight: Values
    scales: Float32 | None = None
    zeros: Values | None = None


def stored_rows(form: StackForm, pieces: Pieces) -> StackRows:
    """A matrix, or two whose rows take turns."""
    parts = [_one(form, piece) for piece in pieces]
    if len(parts) == 1:
        return parts[0]
    first, second = parts
    scales, zeros = (first.scales, second.scales), (first.zeros, second.zeros)
    return StackRows(in_turns(first.weight, second.weight), _both(*scales), _both(*zeros))


def _one(form: StackForm, piece: Float32 | Blocks) -> StackRows:
    if not form.block:
        assert isinstance(piece, np.ndarray)
        return StackRows(piece)
    if form.bits == 8:
        eight = int8_blocks(piece, _inputs(piece), form.block, form.asymmetric)
        return StackRows(eight.codes.reshape(len(eight.codes), -1), eight.scales, eight.zero_points)
    four = as_int4_blocks(piece, _inputs(piece), BlockForm(4, form.block, form.asymmetric))
    return StackRows(four.stored().reshape(len(four.codes), -1), four.scales, four.stored_points())


def in_turns(first: Values, second: Values) -> Values:
    """The first row of one, the first of the other, the second of one, and so on."""
    return np.stack((first, second), axis=1).reshape(-1, *first.shape[1:])


def _inputs(piece: Float32 | Blocks) -> int:
    return int(piece.shape[1] if isinstance(piece, np.ndarray) else piece.scales.shape[1] * piece.block)


def _both(first: Values | None, second: Values | None) -> Values | None:
    return None if first is None or second is None else in_turns(first, second)


class ExpertPacker:
    """Writes the experts of a network's layers. on_read: is told the stored bytes of what was read."""

    def __init__(
        self, checkpoint: Checkpoint, network: Network, arguments: CompileArguments, on_read: Callable[[int], None]
    ) -> None:
        self._checkpoint, self._network = checkpoint, network
        self._arguments, self._on_read = arguments, on_read

    def pack(self, file: WeightFile, small: WeightFile, layer: int, scale: float) -> tuple[PackedStack, PackedStack]:
        """Gate and up, and down, which is multiplied by `scale`. Biases go into `small`."""
        experts = self._network.details.experts
        assert experts is not None
        tensors = ExpertTensors(self._checkpoint, self._network, layer)
        at, count = f"layer_{layer}_experts", experts.spec.count
        factor = tensors.scales() * np.float32(scale * experts.routing.scale)
        hidden, ffn = self._network.spec.hidden, experts.spec.ffn
        numbers = range(count)
        keeps = not method_of(self._arguments).is_exact

        def gate_up() -> Iterator[Pieces]:
            for expert in numbers:
                yield tensors.kept_gate_up(expert) if keeps else tensors.gate_up(expert)

        def down() -> Iterator[Pieces]:
            for expert in numbers:
                self._on_read(tensors.stored_bytes())
                yield (_scaled(tensors.kept_down(expert) if keeps else tensors.down(expert), factor[expert]),)

        first, last = tensors.kept_gate_up(0), (tensors.kept_down(0),)
        shape = len(first) * ffn, hidden
        forms = self._forms((first, hidden), (last, ffn))
        first_matrix = self._store(file, f"{at}_gate_up", shape, forms[0], gate_up())
        down_matrix = self._store(file, f"{at}_down", (hidden, ffn), forms[1], down())
        biases = [tensors.biases(expert) for expert in numbers]
        both = np.stack([in_turns(each[0], each[1]) for each in biases if each is not None]) if biases[0] else None
        last_bias = np.stack([each[2] for each in biases if each is not None]) * factor[:, None] if biases[0] else None
        return (
            PackedStack(first_matrix, None if both is None else small.add(f"{at}_gate_up_bias", both)),
            PackedStack(down_matrix, None if last_bias is None else small.add(f"{at}_down_bias", last_bias)),
        )

    def _forms(self, *stacks: tuple[Pieces, int]) -> list[StackForm]:
        """What matrices of so many inputs are stored as: the operator knows one number of bits and one size of blocks.

        CompileError where inputs are not whole blocks, or there is no such form.
        """
        stack = method_of(self._arguments).stack
        if stack is None:
            raise CompileError(f"--quant {self._arguments.quant} has no form for experts")
        found = [stack(pieces, self._arguments) for pieces, _ in stacks]
        if len({form.bits for form in found}) > 1:  # codes of 8 bits have room for 4 bits around any zero point
            found = [replace(form, bits=8, asymmetric=form.asymmetric and form.bits == 8) for form in found]
        block = min(form.block for form in found)
        for inputs in (inputs for _, inputs in stacks if block and inputs % block):
            raise CompileError(f"experts with {inputs} inputs cannot be stored in blocks of {block}; take --quant fp32")
        return [replace(form, block=block) for form in found]

    def _store(
        self, file: WeightFile, name: str, shape: tuple[int, int], form: StackForm, pieces: Iterator[Pieces]
    ) -> StoredMatrix:
        outputs, inputs = shape
        experts = self._network.spec.experts
        assert experts is not None
        scales: list[Float32] = []
        zeros: list[Values] = []

        def weights() -> Iterator[Values]:
            for stored in ahead(partial(stored_rows, form), pieces):
                if stored.scales is not None:
                    scales.append(stored.scales)
                if stored.zeros is not None:
                    zeros.append(stored.zeros)
                yield stored.weight

        kind = onnx.TensorProto.UINT8 if form.block else onnx.TensorProto.FLOAT
        width = inputs * form.bits // 8 if form.block else inputs
        weight = file.add_chunks(f"{name}_weight", kind, (experts.count, outputs, width), weights())
        return StoredMatrix(
            inputs,
            outputs,
            weight,
            _added(file, f"{name}_scales", scales),
            _added(file, f"{name}_zeros", zeros),
            form.block,
            form.bits,
        )


def _added(file: WeightFile, name: str, stacked: list[Values]) -> StoredTensor | None:
    return file.add(name, np.stack(stacked)) if stacked else None


def _scaled(piece: Piece, factor: np.float32) -> Piece:
    if factor == 1:
        return piece
    if isinstance(piece, np.ndarray):
        return piece * factor
    return piece.scaled(np.full((len(piece.scales), 1), factor, np.float32))
