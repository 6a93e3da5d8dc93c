"""Rotations of a network by seeded Hadamard matrices, as edits of its tensors. W [outputs, inputs] is a matrix.

R1 turns the residual stream, R2 the values of every head (names as in SpinQuant). The scale of each norm is multiplied
into the matrices that read behind it, for a norm without scale commutes with R1.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from engine.bundle.specs import RecurrentKind
from engine.compile.quantisation.methods.blocks import Float64
from engine.compile.quantisation.methods.hadamard import flattest
from engine.models.network import Network


@dataclass(frozen=True, slots=True)
class Rotation:
    """R = diag(signs) (S x F), [size, size]. signs: [size]. flat: F, of the odd factor. S is Sylvester's Hadamard
    matrix of a power of two. It is not built: the product with it is a fast transform."""

    signs: Float64
    flat: Float64

    @classmethod
    def seeded(cls, size: int, seed: Sequence[int]) -> "Rotation":
        """The same for the same seed, whatever is made before or after it."""
        return cls(np.random.default_rng(list(seed)).choice(np.array([-1.0, 1.0]), size), flattest(size))

    @property
    def size(self) -> int:
        """Length of the vectors that it turns."""
        return len(self.signs)

    def turn(self, x: Float64) -> Float64:
        """x R for x [..., blocks * size], each block by itself."""
        width = len(self.flat)
        power = self.size // width
        turned = (x.reshape(-1, self.size) * self.signs).reshape(-1, width) @ self.flat
        for half in (1 << bit for bit in range(power.bit_length() - 1)):
            pairs = turned.reshape(-1, 2, half, width)
            turned = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
        return np.asarray(turned / math.sqrt(power)).reshape(x.shape)


@dataclass(frozen=True, slots=True)
class LinearEdit:
    """Of a matrix and its bias, in the order of the fields; None and "" = not.

    source: module whose matrix it is made of, for one that the checkpoint does not store. norm: module of the norm
    whose scale is multiplied into the inputs. input_scale [inputs], output_scale [outputs]: factors. input_rotation:
    W R, as inputs come turned. output_rotation: Rᵀ W and b R, so that outputs leave turned. Both act on blocks of the
    rotation's size, that of outputs only from `first_output` on, which is a multiple of the size."""

    source: str = ""
    norm: str = ""
    input_scale: Float64 | None = None
    output_scale: Float64 | None = None
    input_rotation: Rotation | None = None
    output_rotation: Rotation | None = None
    first_output: int = 0

    def inputs(self, rows: Float64, norm_scale: Float64 | None) -> Float64:
        """What becomes of rows [some outputs, inputs] of W along their inputs."""
        for scale in (norm_scale, self.input_scale):
            rows = rows if scale is None else rows * scale
        return rows if self.input_rotation is None else self.input_rotation.turn(rows)

    def outputs(self, rows: Float64, start: int) -> Float64:
        """What becomes of outputs start.. of W [some outputs, inputs] or b [some outputs]: whole blocks (`bounds`)."""
        if self.output_scale is not None:
            rows = (rows.T * self.output_scale[start : start + len(rows)]).T
        if self.output_rotation is None:
            return rows
        kept = min(max(self.first_output - start, 0), len(rows))
        turned = self.output_rotation.turn(np.ascontiguousarray(rows[kept:].T))
        return np.concatenate([rows[:kept], turned.T])

    def bounds(self, start: int, stop: int, outputs: int) -> tuple[int, int]:
        """The outputs that outputs start..stop are made of."""
        if self.output_rotation is None or stop <= self.first_output:
            return start, stop
        size, first = self.output_rotation.size, self.first_output
        low = start if start < first else first + (start - first) // size * size
        return low, min(first + -((first - stop) // size) * size, outputs)


@dataclass(frozen=True, slots=True)
class Edits:
    """Of a whole network: norms and linear layers (the embedding table is one, [vocab, hidden]) by module. norms: what
    their scales are multiplied with [size], None = they become 1, folded into the matrices that read."""

    norms: Mapping[str, Float64 | None] = field(default_factory=dict)
    linears: Mapping[str, LinearEdit] = field(default_factory=dict)


def rotation_edits(network: Network, seed: int) -> Edits:
    """What both rotations do to each tensor."""
    turn = Rotation.seeded(network.spec.hidden, (seed, 0))
    names, layers = network.details.names, range(network.spec.layers)
    norms = [name.format(layer=layer) for layer in layers for name in (names.attention_norm, names.ffn_norm)]
    linears = dict(_stream(network, turn, dict(_values(network, seed))))
    return Edits(dict.fromkeys([*norms, names.final_norm]), linears)


def readers(network: Network, layer: int) -> tuple[str, ...]:
    """Modules that read behind the first norm of a layer."""
    details = network.details
    if layer in network.spec.attention_layers:
        return details.names.qkv
    names = details.recurrent_names
    has_steps = network.spec.recurrent is not None and network.spec.recurrent.kind is RecurrentKind.GATED_DELTA
    return (*names.qkv_gate, *((names.beta, names.decay) if has_steps else ()))


def value_module(network: Network) -> tuple[str, int]:
    """The module that gives the values, and its first output that is one."""
    qkv = network.details.names.qkv
    return qkv[-1], 0 if len(qkv) == 3 else network.query_width + network.key_width


def _values(network: Network, seed: int) -> Iterator[tuple[str, LinearEdit]]:
    """R2, another in each layer. A gate multiplies the numbers of a head one by one and does not commute with it."""
    if network.details.has_output_gate:
        return
    module, first = value_module(network)
    for layer in network.spec.attention_layers:
        turn = Rotation.seeded(network.spec.head_dim, (seed, 1, layer))
        yield module.format(layer=layer), LinearEdit(output_rotation=turn, first_output=first)
        yield network.details.names.output.format(layer=layer), LinearEdit(input_rotation=turn)


def _stream(network: Network, turn: Rotation, values: dict[str, LinearEdit]) -> Iterator[tuple[str, LinearEdit]]:
    """R1 on every module of the stream, together with what R2 does to it."""
    names, spec, recurrent = network.details.names, network.spec, network.details.recurrent_names
    yield names.embedding, LinearEdit(input_rotation=turn)
    for layer in range(spec.layers):
        behind = [(readers(network, layer), names.attention_norm), (names.gate_up, names.ffn_norm)]
        for modules, norm in behind:
            for module in (name.format(layer=layer) for name in modules):
                own = values.get(module, LinearEdit())
                yield module, replace(own, norm=norm.format(layer=layer), input_rotation=turn)
        mixed = names.output if layer in spec.attention_layers else recurrent.output
        for module in (name.format(layer=layer) for name in (mixed, names.down)):
            yield module, replace(values.get(module, LinearEdit()), output_rotation=turn)
    head = LinearEdit(source=names.embedding if spec.tied_head else "", norm=names.final_norm, input_rotation=turn)
    yield names.head, head
