"""The tensors of a GGUF file under the names of a checkpoint, some rows of them in memory at a time."""

import math
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from io import BufferedReader
from pathlib import Path

import numpy as np
from gguf import quants
from gguf.constants import MODEL_ARCH_NAMES, GGMLQuantizationType
from gguf.tensor_mapping import get_tensor_name_map
from numpy.typing import NDArray

from engine.compile.quantisation.methods.blocks import BlockForm, Blocks
from engine.compile.sources.checkpoint import Checkpoint, Float32, finite
from engine.compile.sources.gguf.architectures import LONG_FACTORS, ROPE_FACTORS, GgufArchitecture
from engine.compile.sources.gguf.arrangement import (
    AS_STORED,
    BLOCK,
    Arrangement,
    arrangements,
    block_form,
    kept_blocks,
)
from engine.compile.sources.gguf.geometry import ArchitectureFields, GgufGeometry
from engine.compile.sources.gguf.header import GgufHeader, StoredRows
from engine.compile.sources.quantised.checkpoint import MatricesView
from engine.compile.sources.quantised.matrices import FloatCodes
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief, open_regular, reading
from engine.processes import install_command

Bytes = NDArray[np.uint8]
HEAD, OUTPUT = "lm_head.weight", "output.weight"
MOST_STACKED = 16
SLAB_BLOCKS = 8192
DRAFTING = "mtp."  # how checkpoints begin the names of what drafts tokens
# How the converter spells parts of names before it looks them up in the package's table.
SPELLINGS = {
    "block_sparse_moe.experts.": "mlp.experts.",
    "shared_mlp.": "mlp.shared_expert.",
    "e_score_correction_bias": "e_score_correction.bias",
    "expert_bias": "expert_bias.bias",
    "dt_bias": "dt_proj.bias",
}
# Scales of Gemma 4's experts, which that table lacks: endings of names.
ROUTER_SCALES = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}
# Tensors of files that hold several matrices of checkpoints, and the names of these.
STACKS = {
    "altup_proj.weight": "model.altup_projections.{index}.weight",
    "altup_unembd_proj.weight": "model.altup_unembed_projections.{index}.weight",
}


@contextmanager
def gguf_tensors(header: GgufHeader, architecture: GgufArchitecture, geometry: GgufGeometry) -> Iterator[Checkpoint]:
    """The tensors while the files are open."""
    with ExitStack() as opened:
        paths = {stored.path for stored in header.tensors.values()}
        streams = {path: opened.enter_context(_opened(path)) for path in paths}
        found = GgufTensors(streams, header, architecture, geometry)
        yield SplitLatents(found) if architecture.has_latents else found


def _opened(path: Path) -> BufferedReader:
    with reading(path, CompileError):
        return open_regular(path)


class GgufTensors(Checkpoint):
    """Reads from open files; nothing is kept."""

    def __init__(
        self,
        streams: Mapping[Path, BufferedReader],
        header: GgufHeader,
        architecture: GgufArchitecture,
        geometry: GgufGeometry,
    ) -> None:
        self._streams = streams
        self._title = header.path.name
        self._arranged = arrangements(architecture, geometry)
        self._names = TensorNames(header.tensors, architecture, geometry)
        self._stored = _unstacked(header.tensors)
        self._used = {ROPE_FACTORS, *LONG_FACTORS.values()}
        self._coarse_bits = _rare_bits(header.tensors.values())

    def __contains__(self, name: str) -> bool:
        return self._names.stored(name) in self._stored

    def total_bytes(self) -> int:
        return sum(stored.bytes for stored in self._stored.values())

    def unused(self) -> list[str]:
        return sorted(map(self._names.told, self._stored.keys() - self._used))

    def shape(self, name: str) -> tuple[int, ...]:
        return self._find(name).shape

    def stored_bytes(self, name: str) -> int:
        return self._find(name).bytes

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        stored = self._find(name)
        if stored.shape != shape:
            raise CompileError(
                f"{self._title}: tensor {stored.name} has shape {stored.shape}, the metadata makes it {shape}"
            )
        self._used.add(stored.name)

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        self.require(name, shape)
        if len(shape) == 1:
            return self._vector(name, shape[0])
        return self.rows(name, 0, shape[0]).reshape(shape)

    def rows(self, name: str, start: int, stop: int) -> Float32:
        """Rows start..stop of a matrix as float32; of stacked matrices all rows of those."""
        values = self._floats(name, self._ordered(name, *self._runs(name, start, stop)))
        columns = self._arrangement(name).columns
        return values if columns is None else values[:, columns.places(np.arange(values.shape[1]))]

    def form(self, name: str) -> BlockForm | None:
        form = None if self._has_mixed_blocks(name) else block_form(self._find(name).kind)
        return replace(form, is_coarse=True) if form is not None and form.bits in self._coarse_bits else form

    def blocks(self, name: str, start: int, stop: int) -> Blocks | None:
        """As `rows`, as blocks of 32, None unless they lie in the file as such."""
        columns = self._arrangement(name).columns
        if self._has_mixed_blocks(name):
            return None
        with np.errstate(all="ignore"):  # what is not finite is refused below
            blocks = kept_blocks(self._find(name).kind, self._ordered(name, *self._runs(name, start, stop)))
        if blocks is None:
            return None
        finite(name, blocks.scales)
        if blocks.offsets is not None:
            finite(name, blocks.offsets)
        order = columns and columns.of_blocks(BLOCK)
        return blocks.picked((slice(None), order.places(np.arange(blocks.scales.shape[1])))) if order else blocks

    def _runs(self, name: str, start: int, stop: int) -> tuple[int, int]:
        """Runs of the last axis that so many of the first hold."""
        each = math.prod(self.shape(name)[1:-1])
        return start * each, stop * each

    def _arrangement(self, name: str) -> Arrangement:
        return self._arranged.get(name, AS_STORED)

    def _has_mixed_blocks(self, name: str) -> bool:
        """Whether the order of columns takes blocks apart."""
        columns = self._arrangement(name).columns
        return columns is not None and columns.of_blocks(BLOCK) is None

    def _find(self, name: str) -> StoredRows:
        stored = self._stored.get(self._names.stored(name))
        if stored is None:
            raise CompileError(f"{self._title} has no tensor {brief(name)}")
        return _as_arranged(stored, self._arrangement(name))

    def _read(self, name: str, start: int, stop: int) -> Bytes:
        """The stored bytes of rows [stop - start, row bytes]."""
        stored = self._find(name)
        if stop > stored.rows:
            raise CompileError(f"{self._title}: the rows of tensor {stored.name} are no whole heads")
        size = (stop - start) * stored.row_bytes
        with reading(self._title, CompileError):
            stream = self._streams[stored.path]
            stream.seek(stored.offset + start * stored.row_bytes, os.SEEK_SET)
            content = stream.read(size)
        if len(content) != size:
            raise CompileError(f"{self._title} became shorter while it was read")
        return np.frombuffer(content, np.uint8).reshape(stop - start, stored.row_bytes)

    def _vector(self, name: str, size: int) -> Float32:
        """A tensor of one axis."""
        values = self._floats(name, self._read(name, 0, 1)).reshape(size)
        arrangement = self._arrangement(name)
        if arrangement.rows is not None:
            values = values[arrangement.rows.places(np.arange(size))]
        if arrangement.restore is not None:
            values = arrangement.restore(f"{self._title}: tensor {self._find(name).name}", values)
        return values

    def _ordered(self, name: str, start: int, stop: int) -> Bytes:
        """Rows in the order of checkpoints, read in runs of those that lie side by side."""
        order = self._arrangement(name).rows
        if order is None:
            return self._read(name, start, stop)
        places = order.places(np.arange(start, stop))
        ranks = np.argsort(places)
        ascending = places[ranks]
        runs = np.split(ascending, np.flatnonzero(np.diff(ascending) != 1) + 1)
        content = np.concatenate([self._read(name, int(run[0]), int(run[-1]) + 1) for run in runs])
        ordered = np.empty_like(content)
        ordered[ranks] = content
        return ordered

    def _floats(self, name: str, content: Bytes) -> Float32:
        kind = self._find(name).kind
        try:
            values = _dequantized(content, kind)
        except NotImplementedError:
            raise UnsupportedModel(f"{self._title}: tensor type {kind.name} is not supported") from None
        return finite(name, values)


def _dequantized(content: Bytes, kind: GGMLQuantizationType) -> Float32:
    """Numbers of stored rows [rows, row bytes]. Slabs of blocks on two cores, each in its cache: the library's own way
    over rows takes nearly three times as long."""
    coding = getattr(quants, kind.name, None)  # a class for each kind of blocks; plain floats have none
    if coding is None:
        return quants.dequantize(content, kind)
    coding.init_grid()
    blocks = content.reshape(-1, coding.type_size)
    found = np.empty((len(blocks), coding.block_size), np.float32)

    def fill(start: int) -> None:
        with np.errstate(all="ignore"):  # what is not finite is refused by the caller
            found[start : start + SLAB_BLOCKS] = coding.dequantize_blocks(blocks[start : start + SLAB_BLOCKS])

    if len(blocks) <= SLAB_BLOCKS:
        fill(0)
        return found.reshape(len(content), -1)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(fill, range(0, len(blocks), SLAB_BLOCKS)))
    return found.reshape(len(content), -1)


def _rare_bits(tensors: Collection[StoredRows]) -> frozenset[int]:
    """Bits of blocks that lose little where they are rounded anew: less than half of the layers' weights are kept with
    so few. 4 bits then take 8, which are multiplied up to 1.7 times as fast; 8 bits wider blocks, 1.3 times as fast."""
    kept, total = Counter[int](), 0
    for each in tensors:
        if each.name.startswith("blk.") and len(each.shape) > 1:
            form, size = block_form(each.kind), math.prod(each.shape)
            total += size
            kept[form.bits if form is not None and not form.is_coarse else 0] += size
    return frozenset(bits for bits, few in ((4, kept[4]), (8, kept[4] + kept[8])) if 2 * few < total)


def _unstacked(tensors: Mapping[str, StoredRows]) -> dict[str, StoredRows]:
    """Tensors by their names in the file; of those that hold several matrices each of these, by its own."""
    found = dict(tensors)
    for name, ours in STACKS.items():
        stack = found.get(name)
        if stack is None or len(stack.shape) != 3 or stack.shape[0] > MOST_STACKED:
            continue
        size = stack.bytes // stack.shape[0]
        for index in range(stack.shape[0]):
            each = ours.format(index=index)
            found[each] = replace(stack, name=each, shape=stack.shape[1:], offset=stack.offset + index * size)
        del found[name]
    return found


class TensorNames:
    """Where a file has the tensors of a checkpoint, by the package's table of names. tensors: by their names there."""

    def __init__(self, tensors: Collection[str], architecture: GgufArchitecture, geometry: GgufGeometry) -> None:
        kind = next((kind for kind, name in MODEL_ARCH_NAMES.items() if name == architecture.name), None)
        if kind is None:
            raise UnsupportedModel(f"{architecture.name} needs a newer package: {install_command('compile')}")
        self._tensors = tensors
        self._table = get_tensor_name_map(kind, geometry.layers)
        self._drafting = tuple(f"blk.{geometry.layers + layer}." for layer in range(geometry.drafting))

    def stored(self, name: str) -> str:
        """The name of a tensor in the file; one that the table does not know keeps its own."""
        if name == HEAD:
            return OUTPUT
        for ours, theirs in SPELLINGS.items():
            name = name.replace(ours, theirs)
        for ours, theirs in ROUTER_SCALES.items():
            if name.endswith(ours):
                return f"blk.{name.split('.')[2]}.{theirs}"
        # Models without a head and parts of models leave out the first part of names, or have one more.
        for spelled in (name, name.removeprefix("model."), f"model.{name}"):
            found = self._table.get_name(spelled, try_suffixes=(".weight", ".bias"))
            if found is not None:  # what is no module's has `.weight` in the file all the same, or has not
                return f"{found}.weight" if f"{found}.weight" in self._tensors else str(found)
        return name

    def told(self, stored: str) -> str:
        """How a tensor that nothing has asked for is called: the head, and what drafts tokens, as in checkpoints."""
        return HEAD if stored == OUTPUT else f"{DRAFTING}{stored}" if stored.startswith(self._drafting) else stored


def _as_arranged(stored: StoredRows, arrangement: Arrangement) -> StoredRows:
    """[channels, kernel] as [channels, 1, kernel], or all numbers as a vector."""
    if arrangement.is_vector:
        return replace(stored, shape=(math.prod(stored.shape),), row_bytes=stored.bytes)
    is_flat = arrangement.is_flat and len(stored.shape) == 2
    return replace(stored, shape=(stored.shape[0], 1, stored.shape[1])) if is_flat else stored


SOFTMAX, SIGMOID = 1, 2  # of `expert_gating_func`
GATING = {SOFTMAX: "DeepseekV2ForCausalLM", SIGMOID: "Glm4MoeLiteForCausalLM"}
LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"  # a tenth of what checkpoints call mscale_all_dim
KV_UP, HALVES = "kv_b_proj", ("k_b_proj", "v_b_proj")


def latent_facts(fields: ArchitectureFields, geometry: GgufGeometry, rope: dict[str, object]) -> dict[str, object]:
    """rope: as `network_config` has it. UnsupportedModel for another way to score experts."""
    is_normalised = fields.flag("expert_weights_norm", False)
    usual = SIGMOID if is_normalised else SOFTMAX  # files of GLM-4.7-flash need not tell
    gating = fields.integer("expert_gating_func", 0, 1 << 16, usual) or usual
    if gating not in GATING:
        raise UnsupportedModel(f"{fields.title}: {fields.key('expert_gating_func')} {gating} is not supported")
    turned = fields.integer("rope.dimension_count", 2, geometry.head_dim - 1)
    old_value = fields.integer("attention.value_length", 1, 1 << 16, geometry.head_dim)
    weight = 10 * fields.number(LOG_MULTIPLIER, 0.0, 1e3, 0.0)
    if weight:
        rope = {key: value for key, value in rope.items() if key != "attention_factor"}
        rope |= {"mscale": weight, "mscale_all_dim": weight}
    has_groups = fields.number("expert_group_count", 0.0, 4096.0, 1.0) > 1
    return {
        "architectures": [GATING[gating]],
        "q_lora_rank": fields.integer("attention.q_lora_rank", 0, 1 << 16, 0),
        "kv_lora_rank": fields.integer("attention.kv_lora_rank", 1, 1 << 16),
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": geometry.head_dim - turned,
        "v_head_dim": fields.integer("attention.value_length_mla", 1, 1024, old_value),
        "norm_topk_prob": is_normalised,
        "topk_method": "group_limited_greedy" if has_groups else "greedy",
        "partial_rotary_factor": 1.0,
        "rope_parameters": rope,
    }


class SplitLatents(MatricesView):
    """As `inner`, with what makes keys and values [H * (K + V), R] of the two tensors [H, R, K] and [H, V, R]. They are
    no blocks: one of the tensors lies across its own."""

    mismatch = "tensor {} has shape {}, the metadata makes it {}"

    def matrix(self, name: str) -> FloatCodes | None:
        halves = tuple(name.replace(KV_UP, half) for half in HALVES)
        if f".{KV_UP}." not in name or name in self.inner or not all(half in self.inner for half in halves):
            return None
        keys, values = shapes = [self.inner.shape(half) for half in halves]
        if len(keys) != 3 or len(values) != 3 or (keys[0], keys[1]) != (values[0], values[2]):
            raise CompileError(f"tensors {halves[0]} and {halves[1]} do not belong together: {keys}, {values}")

        def floats(start: int, stop: int) -> Float32:
            keys, values = map(self.inner.tensor, halves, shapes)
            return np.concatenate([keys.swapaxes(1, 2), values], axis=1).reshape(shape)[start:stop]

        shape = keys[0] * (keys[2] + values[1]), keys[1]
        return FloatCodes(halves, shape, floats)
