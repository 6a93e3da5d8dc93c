"""Where and how the converter stores a tensor otherwise than checkpoints have it, and the way back, also of blocks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import MXFP4, Q4_K
from numpy.typing import NDArray

from engine.bundle.specs import RecurrentSpec
from engine.compile.quantisation.methods.blocks import INT4_MIDDLE, INT8_MIDDLE, BlockForm, Blocks
from engine.compile.sources.checkpoint import Float32
from engine.compile.sources.gguf.architectures import GgufArchitecture
from engine.compile.sources.gguf.geometry import GgufGeometry
from engine.errors import CompileError

Places = NDArray[np.int64]
# Names of checkpoints; `{layer}` is the layer's index.
LAYER = "model.layers.{layer}"
DELTA = f"{LAYER}.linear_attn"
MAMBA2 = f"{LAYER}.mamba", "backbone.layers.{layer}.mixer"  # the second of Nemotron-H
TURNED = tuple(f"{LAYER}.self_attn.{name}_proj.{part}" for name in ("q", "k") for part in ("weight", "bias"))
# Those that multiply with 1 + w; the norm of recurrent outputs multiplies with w itself.
NORMS = (
    *("model.norm", f"{LAYER}.input_layernorm", f"{LAYER}.post_attention_layernorm"),
    *(f"{LAYER}.self_attn.q_norm", f"{LAYER}.self_attn.k_norm"),
    *(f"{LAYER}.pre_feedforward_layernorm", f"{LAYER}.post_feedforward_layernorm"),
)


@dataclass(frozen=True, slots=True)
class Halves:
    """Row h, half a, j of the checkpoint lies at h, j, a: files of llama turn neighbours. size: rows of a head."""

    size: int

    def places(self, wanted: Places) -> Places:
        """Where the file has what a checkpoint has at `wanted`."""
        inside = wanted % self.size
        return wanted - inside + 2 * (inside % (self.size // 2)) + inside // (self.size // 2)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Value heads: checkpoints have those of one key head side by side, files the first one of every key head first.
    key_heads, repeats: value heads of each. size: rows of a value head. start: where the first value head is."""

    key_heads: int
    repeats: int
    size: int
    start: int = 0

    def places(self, wanted: Places) -> Places:
        """As of `Halves`. What lies before the value heads stays where it is."""
        head, inside = np.divmod(wanted - self.start, self.size)
        group, nth = np.divmod(head, self.repeats)
        moved = self.start + (nth * self.key_heads + group) * self.size + inside
        return np.where(wanted < self.start, wanted, moved)

    def of_blocks(self, block: int) -> "Tiles | None":
        """The order of whole blocks, None when a block holds parts of two heads."""
        return replace(self, size=self.size // block) if self.size % block == 0 and not self.start else None


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What to undo. is_flat: the file lacks the middle axis of length 1. is_vector: it has a second axis.
    restore(tensor, values): values of the checkpoint, for vectors; CompileError begins with `tensor`."""

    rows: Halves | Tiles | None = None
    columns: Tiles | None = None
    is_flat: bool = False
    is_vector: bool = False
    restore: Callable[[str, Float32], Float32] | None = None


AS_STORED = Arrangement()


def arrangements(architecture: GgufArchitecture, geometry: GgufGeometry) -> Mapping[str, Arrangement]:
    """By the names of tensors in checkpoints; those that are not listed are stored as they are."""
    found: dict[str, Arrangement] = {}
    if architecture.is_interleaved:
        found = dict.fromkeys(TURNED, Arrangement(rows=Halves(geometry.head_dim)))
    if geometry.recurrent is not None:
        found = _recurrent(geometry.recurrent)
    found[f"{LAYER}.conv.conv.weight"] = Arrangement(is_flat=True)
    for mixer in MAMBA2:
        found[f"{mixer}.conv1d.weight"] = Arrangement(is_flat=True)
        found |= dict.fromkeys((f"{mixer}.D", f"{mixer}.norm.weight"), Arrangement(is_vector=True))
        found[f"{mixer}.A_log"] = Arrangement(is_vector=True, restore=_logarithm)
    if architecture.has_more_norms:
        found |= {f"{norm}.weight": Arrangement(restore=_without_one) for norm in NORMS}
    return {name.format(layer=layer): each for name, each in found.items() for layer in range(geometry.layers)}


def _recurrent(spec: RecurrentSpec) -> dict[str, Arrangement]:
    before = 2 * spec.key_width
    has_tiles = spec.value_heads != spec.key_heads
    heads = Tiles(spec.key_heads, spec.value_heads // spec.key_heads, spec.value_dim) if has_tiles else None
    single = replace(heads, size=1) if heads else None
    mixed = replace(heads, start=before) if heads else None
    return {
        f"{DELTA}.in_proj_qkv.weight": Arrangement(rows=mixed),
        f"{DELTA}.in_proj_z.weight": Arrangement(rows=heads),
        **{f"{DELTA}.in_proj_{step}.weight": Arrangement(rows=single) for step in ("b", "a")},
        f"{DELTA}.conv1d.weight": Arrangement(rows=mixed, is_flat=True),
        f"{DELTA}.out_proj.weight": Arrangement(columns=heads),
        f"{DELTA}.A_log": Arrangement(rows=single, restore=_logarithm),
        f"{DELTA}.dt_bias": Arrangement(rows=single),
    }


def _without_one(tensor: str, values: Float32) -> Float32:
    """The file has what a norm multiplies with, the checkpoint how much that is more than 1."""
    return values - np.float32(1)


def _logarithm(tensor: str, values: Float32) -> Float32:
    """The file has -exp of it."""
    if not np.all(values < 0):
        raise CompileError(f"{tensor} holds numbers that are not negative")
    return np.log(-values)


Bytes = NDArray[np.uint8]
HALF = 2  # bytes of a half-precision number
BLOCK = 32  # weights of a block
SCALES = 12  # bytes of the scales and minima of a block of Q4_K
FLOAT_TYPES = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)
FOUR_BIT = (GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q4_K)


def kept_blocks(kind: GGMLQuantizationType, content: Bytes) -> Blocks | None:
    """Rows [rows, row bytes] as blocks of 32, None for a type that has none or has them otherwise."""
    read = _READERS.get(kind)
    return read(content.reshape(len(content), -1, GGML_QUANT_SIZES[kind][1])) if read else None


def block_form(kind: GGMLQuantizationType) -> BlockForm | None:
    """Of `kept_blocks` of this type, None when it has none."""
    if kind not in _READERS:
        return None
    return BlockForm(4 if kind in FOUR_BIT else 8, is_coarse=kind is GGMLQuantizationType.Q5_0)


def _q8_0(parts: Bytes) -> Blocks:
    """A scale and 32 numbers in two's complement."""
    return Blocks(8, parts[:, :, HALF:] ^ np.uint8(INT8_MIDDLE), _halves(parts, 0))


def _q5_0(parts: Bytes) -> Blocks:
    """A scale, the fifth bits of 32 codes around 16, and their lower bits."""
    fifth = np.unpackbits(parts[:, :, HALF : HALF + 4], axis=2, bitorder="little") << np.uint8(4)
    codes = _nibbles(parts[:, :, HALF + 4 :]) | fifth
    return Blocks(8, codes + np.uint8(INT8_MIDDLE - 16), _halves(parts, 0))


def _q4_0(parts: Bytes) -> Blocks:
    """A scale and 32 codes around 8."""
    return Blocks(4, _nibbles(parts[:, :, HALF:]), _halves(parts, 0))


def _q4_1(parts: Bytes) -> Blocks:
    """A scale, the value of code 0, and 32 codes."""
    scales = _halves(parts, 0)
    offsets = _halves(parts, HALF) + scales * np.float32(INT4_MIDDLE)
    return Blocks(4, _nibbles(parts[:, :, 2 * HALF :]), scales, offsets=offsets)


def _q4_k(parts: Bytes) -> Blocks:
    """Eight blocks that share a scale of their scales and one of their minima."""
    rows, count, _ = parts.shape
    codes = parts[:, :, 2 * HALF + SCALES :].reshape(rows, count * 4, 32)
    small, minima = Q4_K.get_scale_min(parts[:, :, 2 * HALF : 2 * HALF + SCALES].reshape(-1, SCALES))
    scales = _halves(parts, 0)[:, :, None] * small.reshape(rows, count, 8).astype(np.float32)
    lowest = _halves(parts, HALF)[:, :, None] * minima.reshape(rows, count, 8).astype(np.float32)
    offsets = scales * np.float32(INT4_MIDDLE) - lowest
    # Here a byte holds codes of two blocks, one in its low and one in its high half.
    apart = np.stack([codes & np.uint8(15), codes >> np.uint8(4)], axis=2).reshape(rows, count * 8, 32)
    return Blocks(4, apart, scales.reshape(rows, -1), offsets=offsets.reshape(rows, -1))


def _mxfp4(parts: Bytes) -> Blocks:
    """An exponent, which tells half of the scale, and 32 codes of E2M1."""
    twice = np.array(MXFP4.kvalues, np.int16) + INT8_MIDDLE
    return Blocks(8, twice.astype(np.uint8)[_nibbles(parts[:, :, 1:])], MXFP4.e8m0_to_fp32_half(parts[:, :, 0]))


def _nibbles(codes: Bytes) -> Bytes:
    """Codes of each block [rows, blocks, block]: the file has the first half of them in the low nibbles."""
    return np.concatenate([codes & np.uint8(15), codes >> np.uint8(4)], axis=2)


def _halves(parts: Bytes, start: int) -> Float32:
    """The half-precision number at one place of every block, as [rows, blocks]."""
    return np.ascontiguousarray(parts[:, :, start : start + HALF]).view("<f2")[:, :, 0].astype(np.float32)


_READERS: dict[GGMLQuantizationType, Callable[[Bytes], Blocks]] = {
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q4_K: _q4_k,
    GGMLQuantizationType.Q5_0: _q5_0,
    GGMLQuantizationType.Q8_0: _q8_0,
    GGMLQuantizationType.MXFP4: _mxfp4,
}
