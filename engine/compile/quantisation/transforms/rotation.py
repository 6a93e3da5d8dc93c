"""Rotations of a network by seeded Hadamard matrices, as edits of its tensors. W [outputs, inputs] is a matrix.

R1 turns the residual stream, R2 the values of every head (names as in SpinQuant). The scale of each norm is multiplied
into the matrices that read behind it, for a norm without scale commutes with R1.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.bundle.specs import RecurrentKind
from engine.models.network import Network

Float64 = NDArray[np.float64]
Signs = NDArray[np.int8]
DENSE = 64  # a power of two is cut into factors no larger: their product takes far fewer steps than one matrix
LARGEST = 1024  # of the matrices that are built whole for an odd factor


def sylvester(size: int) -> Signs:
    """[size, size] for a power of two."""
    matrix = np.ones((1, 1), np.int8)
    while len(matrix) < size:
        matrix = np.kron(np.array([[1, 1], [1, -1]], np.int8), matrix)
    return matrix


def paley(size: int) -> Signs | None:
    """[size, size] where size - 1 (first kind) or size / 2 - 1 (second kind) is a fitting prime, else None."""
    if size % 4:
        return None
    if _is_prime(size - 1):
        return _first_kind(size - 1)
    half = size // 2 - 1
    return _second_kind(half) if half % 4 == 1 and _is_prime(half) else None


def hadamard_factors(size: int) -> tuple[Signs, ...] | None:
    """Hadamard matrices whose Kronecker product is one of [size, size]; None when no construction here gives it."""
    odd = size // _power_of_two(size)
    if odd == 1:
        return _sylvester_factors(size)
    order = 4 * odd
    while size % order == 0 and order <= LARGEST:
        matrix = paley(order)
        if matrix is not None:
            return (*_sylvester_factors(size // order), matrix)
        order *= 2
    return None


def orthogonal_factors(size: int, generator: np.random.Generator) -> tuple[Float64, ...]:
    """Orthogonal matrices whose Kronecker product is [size, size]: Hadamard, or a random one for the odd factor."""
    signs = hadamard_factors(size)
    if signs is not None:
        return tuple(_normalised(matrix) for matrix in signs)
    power = _power_of_two(size)
    return (*map(_normalised, _sylvester_factors(power)), random_orthogonal(size // power, generator))


def random_orthogonal(size: int, generator: np.random.Generator) -> Float64:
    """[size, size], uniform among all: the signs of R's diagonal are what QR leaves open."""
    q, r = np.linalg.qr(generator.standard_normal((size, size)))
    return np.asarray(q * np.sign(np.diag(r)), np.float64)


def _normalised(matrix: Signs) -> Float64:
    return matrix.astype(np.float64) / math.sqrt(len(matrix))


def _sylvester_factors(size: int) -> tuple[Signs, ...]:
    factors = []
    while size > 1:
        factors.append(sylvester(min(size, DENSE)))
        size //= len(factors[-1])
    return tuple(factors)


def _power_of_two(size: int) -> int:
    """The largest that divides size."""
    return size & -size


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


def _jacobsthal(prime: int) -> Signs:
    """[prime, prime] with entry (i, j) 1 where i - j is a square modulo the prime, -1 where it is none, 0 for i = j."""
    character = np.full(prime, -1, np.int8)
    character[np.arange(1, prime) ** 2 % prime] = 1
    character[0] = 0
    indices = np.arange(prime)
    return np.asarray(character[(indices[:, None] - indices) % prime], np.int8)


def _first_kind(prime: int) -> Signs:
    """Of prime + 1 rows, for a prime that leaves 3 when divided by 4."""
    skew = np.zeros((prime + 1, prime + 1), np.int8)
    skew[0, 1:], skew[1:, 0] = 1, -1
    skew[1:, 1:] = _jacobsthal(prime)
    return skew + np.eye(prime + 1, dtype=np.int8)


def _second_kind(prime: int) -> Signs:
    """Of 2 prime + 2 rows, for a prime that leaves 1 when divided by 4."""
    symmetric = np.zeros((prime + 1, prime + 1), np.int8)
    symmetric[0, 1:] = symmetric[1:, 0] = 1
    symmetric[1:, 1:] = _jacobsthal(prime)
    diagonal = np.eye(prime + 1, dtype=np.int8)
    off, on = np.array([[1, 1], [1, -1]], np.int8), np.array([[1, -1], [-1, -1]], np.int8)
    return np.asarray(np.kron(symmetric, off) + np.kron(diagonal, on), np.int8)


@dataclass(frozen=True, slots=True)
class Rotation:
    """R = diag(signs) (F1 x F2 x ...), [size, size]. signs: [size]."""

    signs: Float64
    factors: tuple[Float64, ...]

    @classmethod
    def seeded(cls, size: int, seed: Sequence[int]) -> "Rotation":
        """The same for the same seed, whatever is made before or after it."""
        generator = np.random.default_rng(list(seed))
        signs = generator.choice(np.array([-1.0, 1.0]), size)
        return cls(signs, orthogonal_factors(size, generator))

    @property
    def size(self) -> int:
        """Length of the vectors that it turns."""
        return len(self.signs)

    def turn(self, x: Float64) -> Float64:
        """x R for x [..., blocks * size], each block by itself."""
        turned = x.reshape(-1, self.size) * self.signs
        # Each acts on the last part of the index and moves it to the front: after all of them the order is restored.
        for factor in reversed(self.factors):
            width = len(factor)
            parts = turned.reshape(-1, self.size // width, width) @ factor
            turned = parts.swapaxes(1, 2).reshape(-1, self.size)
        return turned.reshape(x.shape)


@dataclass(frozen=True, slots=True)
class NormEdit:
    """Of the scale g of a norm: g times `scale` [size], or 1 where it is folded into the matrices that read."""

    scale: Float64 | None = None


@dataclass(frozen=True, slots=True)
class LinearEdit:
    """Of a matrix and its bias, in the order of the fields; None and "" = not.

    source: module whose matrix it is made of, for one that the checkpoint does not store. norm: module of the norm
    whose scale is multiplied into the inputs. input_scale [inputs], output_scale [outputs]: factors. input_rotation:
    W R, as inputs come turned. output_rotation: Rᵀ W and b R, so that outputs leave turned. Both act on blocks of the
    rotation's size, that of outputs only from `first_output` on, which is a multiple of the size.
    """

    source: str = ""
    norm: str = ""
    input_scale: Float64 | None = None
    output_scale: Float64 | None = None
    input_rotation: Rotation | None = None
    output_rotation: Rotation | None = None
    first_output: int = 0

    @property
    def changes_outputs(self) -> bool:
        """Whether `outputs` does anything."""
        return self.output_scale is not None or self.output_rotation is not None

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
    """Of a whole network: norms and linear layers (the embedding table is one, [vocab, hidden]) by module."""

    norms: Mapping[str, NormEdit] = field(default_factory=dict)
    linears: Mapping[str, LinearEdit] = field(default_factory=dict)


def rotation_edits(network: Network, seed: int, stream: bool = True) -> Edits:
    """What both rotations do to each tensor. stream: whether R1 is among them, which needs a head that turns back."""
    if not stream:
        return Edits({}, dict(_values(network, seed)))
    turn = Rotation.seeded(network.spec.hidden, (seed, 0))
    values = dict(_values(network, seed))
    linears = dict(_stream(network, turn, values))
    return Edits({norm: NormEdit() for norm in _norms(network)}, linears)


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


def _norms(network: Network) -> Iterator[str]:
    names = network.details.names
    for layer in range(network.spec.layers):
        yield names.attention_norm.format(layer=layer)
        yield names.ffn_norm.format(layer=layer)
    yield names.final_norm


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
                value = values.get(module, LinearEdit())
                yield (
                    module,
                    LinearEdit(
                        norm=norm.format(layer=layer),
                        input_rotation=turn,
                        output_rotation=value.output_rotation,
                        first_output=value.first_output,
                    ),
                )
        mixed = names.output if layer in spec.attention_layers else recurrent.output
        for module in (name.format(layer=layer) for name in (mixed, names.down)):
            heads = values.get(module, LinearEdit())
            yield module, LinearEdit(input_rotation=heads.input_rotation, output_rotation=turn)
    head = LinearEdit(source=names.embedding if spec.tied_head else "", norm=names.final_norm, input_rotation=turn)
    yield names.head, head
