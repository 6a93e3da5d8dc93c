"""The matrices of a layer's experts, one expert at a time, however the checkpoint has them."""

from dataclasses import replace

import numpy as np

from engine.compile.quantisation.methods.blocks import BlockForm, Blocks, Places
from engine.compile.sources.checkpoint import Checkpoint, Float32
from engine.errors import CompileError
from engine.models.experts import ExpertDetails, ExpertForm
from engine.models.network import Network

Piece = Float32 | Blocks


class ExpertTensors:
    """Of one layer, which has experts. CompileError when a tensor is missing or has another shape."""

    def __init__(self, checkpoint: Checkpoint, network: Network, layer: int) -> None:
        assert network.details.experts is not None
        self._details: ExpertDetails = network.details.experts
        self._checkpoint, self._layer = checkpoint, layer
        self._hidden, self._ffn = network.spec.hidden, self._details.spec.ffn
        self._form, self._parts = self._found(), network.details.activation.matrices

    def gate_up(self, expert: int) -> tuple[Float32, ...]:
        """Each [ffn, hidden]: of gate and up, or of up alone."""
        return tuple(piece for piece in self._gate_up(expert, keeps_blocks=False) if isinstance(piece, np.ndarray))

    def down(self, expert: int) -> Float32:
        """[hidden, ffn]."""
        found = self._matrix(self._form.down, expert, (self._hidden, self._ffn), keeps_blocks=False)
        assert isinstance(found, np.ndarray)
        return found

    def kept_gate_up(self, expert: int) -> tuple[Piece, ...]:
        """As `gate_up`, as blocks where the file has such; rows stand in the order of inputs of `kept_down`."""
        pieces = self._gate_up(expert, keeps_blocks=True)
        form = self._form_of(self._form.down, expert)
        if form is None or (places := form.places()) is None:
            return pieces
        return tuple(_rows(piece, places) for piece in pieces)

    def kept_down(self, expert: int) -> Piece:
        """As `down`, as blocks where the file has such, whose inputs may stand in an order of their own."""
        return self._matrix(self._form.down, expert, (self._hidden, self._ffn), keeps_blocks=True)

    def keep_codes(self) -> list[bool]:
        """Whether a bundle that keeps codes has those of each expert's gate and up, and of its down."""
        numbers = range(self._details.spec.count)
        stacks = [tuple(self._form.gate_up), (self._form.down,)]
        forms = [[_alone({self._form_of(name, each) for name in names}) for names in stacks] for each in numbers]
        pairs = (pair for each in forms for pair in zip(each, forms[0], strict=True))
        return [form is not None and form == first for form, first in pairs]

    def biases(self, expert: int) -> tuple[Float32, Float32, Float32] | None:
        """Of gate, up and down; None where there are none."""
        if not self._form.biases:
            return None
        count, both, tensor = self._details.spec.count, len(self._form.biases) - 1, self._checkpoint.tensor
        names = [self._name(name, 0) for name in self._form.biases]
        sizes = (*(2 * self._ffn // both for _ in range(both)), self._hidden)
        *found, down = (tensor(name, (count, size))[expert] for name, size in zip(names, sizes, strict=True))
        gate, up = found if both == 2 else (found[0][part] for part in self._halves())
        return gate, up, down

    def scales(self) -> Float32:
        """[count]: what each expert's output is multiplied with."""
        beside, count = self._details.beside, self._details.spec.count
        if beside is None:
            return np.ones(count, np.float32)
        return self._checkpoint.tensor(self._name(beside.expert_scale, 0), (count,))

    def stored_bytes(self) -> int:
        names = (self._name(name, 0) for name in (*self._form.gate_up, self._form.down))
        share = self._details.spec.count if self._form.is_stacked else 1
        return sum(map(self._checkpoint.stored_bytes, names)) // share

    def _found(self) -> ExpertForm:
        forms = self._details.names.forms
        for form in forms:
            if all(self._name(name, 0) in self._checkpoint for name in (form.gate_up[0], form.down)):
                return form
        raise CompileError(f"the checkpoint has no tensor {self._name(forms[0].down, 0)}")

    def _name(self, name: str, expert: int) -> str:
        return name.format(layer=self._layer, expert=expert)

    def _form_of(self, name: str, expert: int) -> BlockForm | None:
        """None where blocks cannot be kept: the operator has one order of inputs for all experts, but that of down is
        the order of the rows of gate and up, which is ours to choose."""
        form = None if self._form.is_turned else self._checkpoint.form(self._name(name, expert))
        has_room = name == self._form.down and not self._form.biases
        return None if form is not None and form.order and not has_room else form

    def _gate_up(self, expert: int, keeps_blocks: bool) -> tuple[Piece, ...]:
        names = self._form.gate_up
        shape = (self._parts * self._ffn // len(names), self._hidden)
        parts = tuple(self._matrix(name, expert, shape, keeps_blocks) for name in names)
        return parts if len(parts) == self._parts else tuple(_rows(parts[0], part) for part in self._halves())

    def _halves(self) -> tuple[slice, slice]:
        """Rows of gate and of up, which lie one behind the other or take turns."""
        if self._form.is_interleaved:
            return slice(0, None, 2), slice(1, None, 2)
        return slice(0, self._ffn), slice(self._ffn, None)

    def _matrix(self, name: str, expert: int, shape: tuple[int, int], keeps_blocks: bool) -> Piece:
        full, count = self._name(name, expert), self._details.spec.count
        stored = shape[::-1] if self._form.is_turned else shape
        self._checkpoint.require(full, (count, *stored) if self._form.is_stacked else stored)
        span = (expert, expert + 1) if self._form.is_stacked else (0, stored[0])
        is_kept = keeps_blocks and self._form_of(name, expert) is not None
        blocks = self._checkpoint.blocks(full, *span) if is_kept else None
        if blocks is not None:
            return blocks
        values = self._checkpoint.rows(full, *span).reshape(stored)
        return values.T if self._form.is_turned else values


def _alone(forms: set[BlockForm | None]) -> BlockForm | None:
    """The one form of matrices that lie side by side, whatever the order of inputs."""
    form = next(iter(forms)) if len(forms) == 1 else None
    return form and replace(form, order=b"")


def _rows(piece: Piece, part: Places) -> Piece:
    return piece.picked((part,)) if isinstance(piece, Blocks) else piece[part]
