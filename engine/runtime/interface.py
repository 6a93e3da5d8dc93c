"""The seam between the engine and whatever runs the graphs: the rows of a step, the runtime, its logits, its clock.
Shapes: N = rows of a step, M = some of them, R = those that need logits, P = past columns, C = P + N, V = vocabulary, H
= hidden size."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from engine.bundle.tensors import Array, Encoding
from engine.bundle.variant import ShapeTable, StepShape
from engine.config import BLOCK_SIZE
from engine.core.forecast_tree import ForecastTree
from engine.core.plan import BlockMove, MoveKind, StepPlan
from engine.errors import StepFailed
from engine.request import PromptImage
from engine.runtime.embedded import EmbeddedRows, axes_of, image_rows, joined, prompt_rows

Indices = NDArray[np.int64]
Axes = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PackedSegment:
    """Consecutive rows of one sequence: `count` of them from row `start` on.

    They see the sequence's `past` computed columns, which lie in `blocks` in order, and themselves: in blocks of
    `block_rows` both ways, from block to block causally. room: how many columns the sequence is going to need, as far
    as can be foreseen. adapter: of its request. tree: what its rows see of each other instead, and which of them see
    the first columns of the pool. early: where its first rows may be written while the step runs, if anywhere. audio:
    of its request; aligns: whether it is wanted how far its tokens look at the audio, instead of logits.

    For recurrent layers: owner, the sequence's id, "" where nobody asks for the rows. state_key: of the snapshot that
    the rows go on from, b"" = where the sequence's last rows ended. snapshots: after how many of the rows the state is
    remembered, and as what.
    """

    start: int
    count: int
    blocks: tuple[int, ...]
    past: int
    room: int
    block_rows: int = 1
    adapter: str = ""
    owner: str = ""
    state_key: bytes = b""
    snapshots: tuple[tuple[int, bytes], ...] = ()
    tree: ForecastTree | None = None
    early: tuple[int, ...] = ()
    audio: bytes = b""
    aligns: bool = False

    @property
    def end(self) -> int:
        return self.start + self.count

    def visible_rows(self) -> NDArray[np.bool_]:
        """Which of the segment's rows each of them sees, bool [count, count]."""
        if self.tree is not None:
            visible = np.zeros((self.count, self.count), np.bool_)
            for row, seen in enumerate(self.tree.seen):
                visible[row, list(seen)] = True
            return visible
        blocks = np.arange(self.count) // self.block_rows
        return blocks[:, None] >= blocks


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One step, ready for a runtime. Rows are right-aligned: padding first, then segments in plan order.
    input_ids, positions: int32 [N], 0 in padding. logit_rows: int64 [R]. embedded: rows that have no token, if any.
    axes: int32 [3, N], where rows turn by; None = all by their positions."""

    shape: StepShape
    input_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    logit_rows: NDArray[np.int64]
    segments: tuple[PackedSegment, ...]
    block_size: int
    embedded: EmbeddedRows | None = None
    axes: Axes | None = None

    @property
    def starts(self) -> tuple[int, ...]:
        return tuple(segment.start for segment in self.segments)

    def early_rows(self) -> tuple[Indices, Indices]:
        """Rows [M] that may be written while the step runs, and the KV slots [M] they go to.
        No row of any step sees these slots before they are kept, so what is written early changes nothing."""
        rows = [segment.start + row for segment in self.segments for row in range(len(segment.early))]
        slots = [slot for segment in self.segments for slot in segment.early]
        return np.array(rows, np.int64), np.array(slots, np.int64)


class RowLayout:
    """Lays the rows of a step, group after group, against its right end: `used` rows in all, padding before them."""

    def __init__(self, shape: StepShape, used: int) -> None:
        assert used <= shape.rows, f"{used} rows do not fit {shape}"
        self._shape = shape
        self._ids = np.zeros(shape.rows, np.int32)
        self._positions = np.zeros(shape.rows, np.int32)
        self._segments: list[PackedSegment] = []
        self._logit_rows: list[int] = []
        self.row = shape.rows - used

    def add(
        self,
        tokens: Sequence[int] | NDArray[np.int32],
        first: int,
        blocks: tuple[int, ...] = (),
        past: int = 0,
        *,
        logits: Iterable[int] = (),
        block_rows: int = 1,
        owner: str = "",
    ) -> int:
        """The next rows of a sequence of which nothing more is known. Returns the first of them."""
        room = past + len(tokens)
        segment = PackedSegment(self.row, len(tokens), blocks, past, room, block_rows, owner=owner)
        return self.add_segment(tokens, first, segment, logits)

    def add_segment(
        self, tokens: Sequence[int] | NDArray[np.int32], first: int, segment: PackedSegment, logits: Iterable[int] = ()
    ) -> int:
        """The next rows: `tokens` from position `first` on, or where a tree has them. Returns the first of the rows.
        segment: starts at `row`. logits: which of its rows give logits."""
        row, end, tree = segment.start, segment.end, segment.tree
        self._ids[row:end] = tokens
        self._positions[row:end] = first + (np.arange(segment.count) if tree is None else np.array(tree.depths))
        self._logit_rows.extend(row + index for index in logits)
        self._segments.append(segment)
        self.row = end
        return row

    def batch(
        self, block_size: int, embedded: EmbeddedRows | None = None, shown: Sequence[tuple[PromptImage, ...]] = ()
    ) -> PackedBatch:
        """The step of all the rows that were added. shown: the images of each group's sequence."""
        assert self.row == self._shape.rows, f"{self._shape.rows - self.row} rows were never added"
        rows, segments = np.array(self._logit_rows, np.int64), tuple(self._segments)
        groups = zip((slice(each.start, each.end) for each in segments), shown, strict=False)
        axes = axes_of(self._positions, groups) if any(shown) else None
        return PackedBatch(self._shape, self._ids, self._positions, rows, segments, block_size, embedded, axes)


def pack(plan: StepPlan, block_size: int) -> PackedBatch:
    layout = RowLayout(plan.shape, plan.rows_used)
    embedded: list[tuple[int, NDArray[np.float32]]] = []
    for segment in plan.segments:
        left = segment.past_slots - len(segment.blocks) * block_size
        assert left <= 0, f"position {segment.first_position}: {left} cached columns have no block"
        request = segment.sequence.request
        packed = PackedSegment(
            layout.row,
            len(segment.tokens),
            segment.blocks,
            segment.past_slots,
            segment.room,
            block_rows=segment.block_rows,
            adapter=request.adapter,
            owner=request.id,
            state_key=segment.state_key,
            snapshots=segment.snapshots,
            tree=segment.tree,
            early=segment.early_targets,
            audio=request.audio,
            aligns=request.pooling is not None and request.pooling.alignment,
        )
        row = layout.add_segment(segment.tokens, segment.first_position, packed, segment.logit_indices)
        if request.prompt_embeds and segment.first_position < len(request.prompt_ids):
            tokens, count = len(request.prompt_ids), len(segment.tokens)
            embedded.append((row, prompt_rows(request.prompt_embeds, tokens, segment.first_position, count)))
        if request.images:
            embedded += image_rows(request, row, segment.first_position, len(segment.tokens))
    shown = [segment.sequence.request.images for segment in plan.segments]
    return layout.batch(block_size, joined(embedded) if embedded else None, shown)


FLOAT32 = Encoding("float32")


@dataclass(frozen=True, slots=True)
class Logits:
    """codes: [R, V] in the type of `encoding`. A larger code is a larger logit: a scale is never negative."""

    codes: Array
    encoding: Encoding

    @classmethod
    def of(cls, values: NDArray[np.float32]) -> "Logits":
        """Logits [R, V] that are real numbers already."""
        return cls(values, FLOAT32)

    @classmethod
    def joined(cls, parts: Sequence["Logits"]) -> "Logits":
        """Rows of several runs, at least one; real numbers where their graphs have other encodings."""
        encoding = parts[0].encoding
        if all(part.encoding == encoding for part in parts):
            return cls(np.concatenate([part.codes for part in parts]), encoding)
        return cls.of(np.concatenate([part.decoded() for part in parts]))

    def __len__(self) -> int:
        return len(self.codes)

    def decoded(self) -> NDArray[np.float32]:
        """Real numbers [R, V]; float32 codes are not copied."""
        return self.encoding.decode(self.codes)

    def rows(self, start: int, end: int) -> "Logits":
        """Rows `start` to `end` - 1, not copied."""
        return Logits(self.codes[start:end], self.encoding)


class StageClock:
    """Seconds of stages that follow each other. `clock` returns seconds, monotonic."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self.seconds: dict[str, float] = {}  # of every stage that was marked, since the start
        self._last = 0.0

    def begin(self) -> None:
        self._last = self._clock()

    def mark(self, stage: str) -> None:
        """The time since the mark before, or since `begin`, was `stage`."""
        now = self._clock()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


def block_slots(block: int) -> slice:
    return slice(block * BLOCK_SIZE, (block + 1) * BLOCK_SIZE)


class BlockStore:
    """What a runtime does with blocks of its memory; this one keeps them as they are, and no copies of them."""

    def offload(self, columns: slice, key: bytes) -> None:
        """Copy the keys and values of `columns`, one block of the pool, to host memory under `key`.
        The copy is made at once or beside the next step; whatever is asked for later finds it made. StepFailed where
        nothing is ever offloaded."""
        raise StepFailed("the caches of this bundle are not offloaded")

    def load(self, columns: slice, key: bytes) -> None:
        """Copy what was offloaded as `key` into `columns`, one block of the pool, widening it if need be."""
        raise StepFailed("the caches of this bundle are not offloaded")

    def offloaded(self, key: bytes) -> bytes:
        """The copy under `key` as bytes: keys, then values, all layers. KeyError when there is none."""
        raise KeyError(key)

    def put_offloaded(self, key: bytes, content: bytes) -> None:
        """Put a copy in host memory, of exactly the bytes that `offloaded` has given for a block."""
        raise StepFailed("the caches of this bundle are not offloaded")

    def evict(self, key: bytes) -> None:
        """Forget the copy in host memory; unknown keys are ignored."""

    def move(self, moves: Iterable[BlockMove]) -> None:
        """Carry out copies between the pool and host memory, in order."""
        for move in moves:
            if move.kind is MoveKind.OFFLOAD:
                self.offload(block_slots(move.block), move.key)
            elif move.kind is MoveKind.LOAD:
                self.load(block_slots(move.block), move.key)
            else:
                self.evict(move.key)

    def free(self, blocks: Collection[int]) -> None:
        """What lies in `blocks` is not wanted any more: memory that holds nothing else may be given back."""

    def free_behind(self, blocks: Collection[int]) -> None:
        """The same of the layers with a window alone: no row that is still to come sees `blocks` there."""


class Runtime(ABC):
    """Owns the graphs and the bytes of keys and values; knows nothing of sequences or blocks.
    What a kind of bundle has no use for does nothing here: only abstract methods are its own. shapes: what `run`
    accepts. device: what really computes: 'CPU', 'HTP emulator' or 'NPU'."""

    stores_blocks = False  # whether its copies of blocks in host memory can be had as bytes
    window = 0  # columns that rows see in layers which hold no more than some windows, 0 = they hold all columns

    def __init__(self, shapes: ShapeTable, device: str) -> None:
        self.shapes = shapes
        self.device = device
        self.blocks = BlockStore()
        self._parts = StageClock()

    @property
    def relayouts(self) -> int:
        """How often keys and values were laid out anew for another width."""
        return 0

    @property
    def experts(self) -> tuple[int, int]:
        """Experts chosen by rows, and different ones read by steps, over all layers since the start."""
        return 0, 0

    @property
    def part_seconds(self) -> Mapping[str, float]:
        """Seconds inside `run` by part, since the start."""
        return self._parts.seconds

    def lay_out(self, shape: StepShape) -> None:  # noqa: B027 - most have no width
        """Make the pool ready for steps of `shape`: re-lay it if it has another width, which loses columns beyond.
        `run` does the same where it is not ready; here it can be timed apart from the graphs."""

    @abstractmethod
    def run(self, batch: PackedBatch) -> Logits:
        """Run one step of N rows, which changes no column; logits [R, V], valid until the next run. StepFailed."""

    @abstractmethod
    def non_finite_rows(self, rows: Indices) -> Indices:
        """Which of `rows` [M] of the last step, 0 to N - 1, have fresh keys or values with NaN or infinity: [0 to M].
        Kept, they would spoil the pool: a masked column still counts as 0 times its value, and 0 times NaN is NaN."""

    @abstractmethod
    def keep(self, rows: Indices, slots: Indices) -> None:
        """Write the fresh keys and values of `rows` [M] of the last step into `slots` [M] of the pool, pair by pair.
        A pool that does not reach the highest slot is widened. Writing may go on beside the loop; whatever reads the
        slots later finds them written, or raises what went wrong."""

    def forget_states(self, sequences: Collection[str], snapshots: Collection[bytes]) -> None:  # noqa: B027
        """Give back the recurrent states of sequences that have ended, by their ids, and snapshots, by their keys."""

    @abstractmethod
    def close(self) -> None:
        """Release bindings, then buffers, then graphs: a binding must not outlive what it points to."""
