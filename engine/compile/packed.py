"""The network's weights as the graphs will read them: every matrix with its storage form."""

from dataclasses import dataclass

from engine.compile.arguments import Quant
from engine.compile.quantization.method import StoredMatrix
from engine.compile.weight_file import StoredTensor


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """One linear layer, perhaps several stacked along their outputs. bias: float32 [outputs]."""

    quant: Quant
    matrix: StoredMatrix
    bias: StoredTensor | None = None


@dataclass(frozen=True, slots=True)
class PackedTable:
    """The embedding [vocab, hidden].

    bits 32 and 16: floats; 8: integers with scales [vocab, 1]; 4: two's complement with scales [vocab, blocks].
    With a zero point: unsigned 16-bit codes with one scale and one zero point, both scalars.
    """

    bits: int
    weight: StoredTensor
    scales: StoredTensor | None = None
    block: int = 0
    zero_point: StoredTensor | None = None


@dataclass(frozen=True, slots=True)
class PackedRecurrence:
    """What only a recurrent layer has. steps: two numbers for each value head, of beta and of the decay.

    rate [heads]: -exp(A_log). dt_bias [heads]. norm [value size]: of the outputs of a head.
    """

    steps: PackedLinear
    rate: StoredTensor
    dt_bias: StoredTensor
    norm: StoredTensor


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """One transformer layer. q_norm already holds the attention scale when there is one, else qkv does.

    In a recurrent layer qkv holds queries, keys, values and the gate of the output.
    """

    attention_norm: StoredTensor
    qkv: PackedLinear
    q_norm: StoredTensor | None
    k_norm: StoredTensor | None
    output: PackedLinear
    ffn_norm: StoredTensor
    gate_up: PackedLinear
    down: PackedLinear
    recurrence: PackedRecurrence | None = None


@dataclass(frozen=True, slots=True)
class PackedPart:
    """What one part's data file holds. The last part of an embedder has a final norm and no head."""

    table: PackedTable | None
    layers: tuple[PackedLayer, ...]
    final_norm: StoredTensor | None
    head: PackedLinear | None

    def linears(self) -> tuple[PackedLinear, ...]:
        """Every linear layer, the head last."""
        inner = [linear for layer in self.layers for linear in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        return (*inner, self.head) if self.head is not None else tuple(inner)
