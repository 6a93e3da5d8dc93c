"""The steps of a draft model: what it has read of each sequence, its rows, what they cost."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from engine.bundle.manifest import Manifest
from engine.bundle.variant import ShapeTable, StepShape
from engine.config import BLOCK_SIZE
from engine.core.kv_blocks import BlockKey, BlockPool, block_keys, blocks_at_once
from engine.core.policy import CostTable
from engine.errors import BundleError, StepFailed
from engine.files import TOKENIZER_BYTES, read_bytes, shown
from engine.request import Request
from engine.runtime.interface import Logits, PackedBatch, PackedSegment, RowLayout, Runtime


@dataclass(slots=True)
class DraftSequence:
    """One sequence. tokens: those whose keys and values lie in `blocks`, the draft's own guesses among them.
    confirmed: how many of them the sequence had when it was last seen; they never change. registered: full blocks of
    them that others may share."""

    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    keys: list[BlockKey] = field(default_factory=list)
    confirmed: int = 0
    registered: int = 0
    last_used: int = 0  # step in which it was followed


class DraftSequences:
    """Owns the blocks of a draft model's cache. Every method leaves `BlockPool` consistent.
    block_rows: rows of so many tokens see each other both ways: blocks are shared up to the end of a block."""

    def __init__(self, pool: BlockPool, block_rows: int = 1) -> None:
        self.pool = pool
        self._block_length = block_rows if block_rows > 1 else 0  # as `block_keys` has it
        self._sequences: dict[str, DraftSequence] = {}
        self._step = 0

    def __len__(self) -> int:
        return len(self._sequences)

    def begin_step(self) -> None:
        """Who is followed from now on keeps its blocks until the next step."""
        self._step += 1

    def unread(self, sequence_id: str, tokens: Sequence[int]) -> int:
        """How many of a sequence's tokens have yet to be read, as far as is known before it is followed."""
        drafted = self._sequences.get(sequence_id)
        return len(tokens) - (_in_common(drafted, tokens) if drafted else 0)

    def follow(self, request: Request, tokens: Sequence[int]) -> DraftSequence:
        """The sequence as far as it was read, without wrong guesses; a new one begins with blocks that others read."""
        drafted = self._sequences.get(request.id)
        if drafted is None or not drafted.blocks:  # meanwhile another one may have read the same beginning
            drafted = self._sequences[request.id] = self._begin(request, tokens)
        else:
            self._rewind(drafted, _in_common(drafted, tokens))
        drafted.confirmed = len(drafted.tokens)
        self._register(drafted, request.cache_salt)
        drafted.last_used = self._step
        return drafted

    def grow(self, drafted: DraftSequence, tokens: int) -> bool:
        """Give it blocks for `tokens` tokens; False if too few.
        If need be those of whoever was followed longest ago, but never in this step: all would take them by turns."""
        wanted = -(-tokens // self.pool.block_size)
        missing = wanted - len(drafted.blocks)
        if wanted > self.pool.block_count:
            return False
        while missing > self.pool.available:
            others = [name for name, each in self._sequences.items() if each.last_used < self._step and each.blocks]
            if not others:
                return False
            self.forget(min(others, key=lambda name: self._sequences[name].last_used))
        drafted.blocks.extend(self.pool.allocate(max(0, missing)) or ())
        return True

    def columns(self, drafted: DraftSequence, count: int) -> list[int]:
        size, start = self.pool.block_size, len(drafted.tokens)
        return [drafted.blocks[at // size] * size + at % size for at in range(start, start + count)]

    def retain(self, sequence_ids: Collection[str]) -> None:
        for name in [name for name in self._sequences if name not in sequence_ids]:
            self.forget(name)

    def forget(self, sequence_id: str) -> None:
        """Give its blocks back; those that are registered can be found again until they are needed."""
        drafted = self._sequences.pop(sequence_id, None)
        if drafted is not None:
            self.pool.release(drafted.blocks)

    def _begin(self, request: Request, tokens: Sequence[int]) -> DraftSequence:
        size = self.pool.block_size
        full = tokens[: (len(tokens) - 1) // size * size]
        keys = block_keys(full, size, salt=request.cache_salt, block_length=self._block_length)
        blocks = self.pool.lookup(keys)
        blocks = blocks[: len(blocks) - len(blocks) % blocks_at_once(size, self._block_length)]
        self.pool.acquire(blocks)
        count = len(blocks)
        return DraftSequence(list(tokens[: count * size]), list(blocks), keys[:count], registered=count)

    def _rewind(self, drafted: DraftSequence, tokens: int) -> None:
        del drafted.tokens[tokens:]
        blocks = -(-tokens // self.pool.block_size)
        self.pool.release(drafted.blocks[blocks:])
        del drafted.blocks[blocks:]

    def _register(self, drafted: DraftSequence, salt: bytes) -> None:
        size = self.pool.block_size
        full = drafted.confirmed // size
        if full > drafted.registered:
            drafted.keys = block_keys(drafted.tokens[: full * size], size, drafted.keys, salt, self._block_length)
            full = len(drafted.keys)  # whole runs of blocks that end with a block
            for block in range(drafted.registered, full):
                self.pool.register(drafted.blocks[block], drafted.keys[block])
            drafted.registered = full


def _in_common(drafted: DraftSequence, tokens: Sequence[int]) -> int:
    """How many of the tokens that were read are the sequence's. Its last token is never one: its row gives logits."""
    most = min(len(drafted.tokens), len(tokens) - 1)
    known = min(drafted.confirmed, most)
    return next((at for at in range(known, most) if drafted.tokens[at] != tokens[at]), most)


READING_ROWS = (128, 64, 32, 16)
LEAST_READING_ROWS = 8
READING_MS = 60.0  # of one step, so that nobody's next token waits long


@dataclass(frozen=True, slots=True)
class DraftRows:
    """Rows of one sequence: its next tokens, of which the first `kept` stay in its blocks.
    logits: indices of the rows whose logits are wanted. coming: tokens that are expected behind them."""

    drafted: DraftSequence
    tokens: Sequence[int]
    kept: int
    logits: Sequence[int] = ()
    coming: int = 0


class DraftSteps:
    """Owns a runtime and the blocks of its cache. clock: seconds."""

    def __init__(self, runtime: Runtime, costs: CostTable, clock: Callable[[], float]) -> None:
        self._runtime = runtime
        self._shapes = _wide(runtime.shapes)
        self._costs = costs
        self._clock = clock
        self._width = 0
        columns = min((shape.past for shape in self._shapes.fixed), default=self._shapes.max_past)
        self._unit = self._shapes.unit  # rows that see each other both ways; 1 = none do
        self.sequences = DraftSequences(BlockPool(columns, BLOCK_SIZE), self._unit)

    @property
    def max_rows(self) -> int:
        return self._shapes.max_rows

    @property
    def columns(self) -> int:
        return self.sequences.pool.block_count * BLOCK_SIZE

    @property
    def reading_rows(self) -> int:
        """Rows of a prompt that are read in one step, whole blocks of them."""
        least = max(self._unit, min(LEAST_READING_ROWS, self.max_rows))
        fitting = [rows for rows in READING_ROWS if least <= rows <= self.max_rows]
        rows = next((rows for rows in fitting if self.price(rows) <= READING_MS), least)
        return rows - rows % self._unit

    def price(self, rows: int) -> float:
        """Milliseconds of a step of so many rows as it would run now."""
        shapes = self._shapes
        if shapes.free:
            return self._costs.milliseconds(StepShape(min(rows, shapes.max_rows), max(shapes.past_step, self._width)))
        able = [shape for shape in shapes.fixed if shape.rows >= rows] or [max(shapes.fixed)]
        return min(self._costs.milliseconds(shape) for shape in able)

    def run(self, parts: Sequence[DraftRows]) -> Logits:
        """One step, and what it leaves in the pool. StepFailed, also when it computed what is not finite.
        Logits [R, V] of the rows that want them, in order, valid until the next step."""
        batch = self._pack(parts)
        self._width = batch.shape.past
        began = self._clock()
        logits = self._runtime.run(batch)
        self._costs.observe(batch.shape, 1000.0 * (self._clock() - began))
        if len(self._runtime.non_finite_rows(np.arange(batch.segments[0].start, batch.shape.rows))):
            raise StepFailed("it computed keys or values that are not finite")
        rows, columns = list[int](), list[int]()
        for part, start in zip(parts, batch.starts, strict=True):
            rows += range(start, start + part.kept)
            columns += self.sequences.columns(part.drafted, part.kept)
            part.drafted.tokens += part.tokens[: part.kept]
        if rows:
            self._runtime.keep(np.array(rows, np.int64), np.array(columns, np.int64))
        return logits

    def retain(self, sequence_ids: Collection[str]) -> None:
        self.sequences.retain(sequence_ids)
        self.free()

    def free(self) -> None:
        if emptied := self.sequences.pool.take_emptied():
            self._runtime.blocks.free(emptied)

    def close(self) -> None:
        self._runtime.close()

    def _pack(self, parts: Sequence[DraftRows]) -> PackedBatch:
        used = sum(len(part.tokens) for part in parts)
        layout = RowLayout(self._shape(used, max(len(part.drafted.tokens) for part in parts)), used)
        for part in parts:
            past, count = len(part.drafted.tokens), len(part.tokens)
            blocks = tuple(part.drafted.blocks[: -(-past // BLOCK_SIZE)])
            segment = PackedSegment(layout.row, count, blocks, past, past + count + part.coming, self._unit)
            layout.add_segment(part.tokens, past, segment, part.logits)
        return layout.batch(BLOCK_SIZE)

    def _shape(self, rows: int, past: int) -> StepShape:
        """The cheapest shape of at least so many rows over the pool as it is used; past: the longest of the step."""
        shapes, pool = self._shapes, self.sequences.pool
        if shapes.segmented:
            return StepShape(rows, shapes.round_past(past))
        if shapes.free:
            return StepShape(rows, max(shapes.round_past(pool.high_water(with_cached=True)), self._width))
        used = pool.high_water(with_cached=False)
        able = [shape for shape in shapes.fixed if shape.rows >= rows and shape.past >= used]
        chosen = min(able, key=lambda s: self._costs.milliseconds(s) + self._costs.switch_ms(self._width, s))
        pool.trim(chosen.past)
        return chosen


def in_parts(counts: Sequence[int], max_rows: int) -> list[slice]:
    """Consecutive sequences of so many rows each, as few steps as this order allows."""
    parts: list[slice] = []
    start = rows = 0
    for index, count in enumerate(counts):
        if rows + count > max_rows and index > start:
            parts.append(slice(start, index))
            start, rows = index, 0
        rows += count
    return [*parts, slice(start, len(counts))] if counts else []


def _wide(shapes: ShapeTable) -> ShapeTable:
    """Without the fixed shapes of less than half the widest past: all that are left span the same columns."""
    if shapes.free:
        return shapes
    wide = tuple(shape for shape in shapes.fixed if 2 * shape.past >= shapes.max_past)
    return replace(shapes, fixed=wide, max_rows=max(shape.rows for shape in wide))


Vocabulary = dict[int, str]  # text by id


def check_same_tokens(
    folder: Path, manifest: Manifest, draft_folder: Path, draft: Manifest, setting: str = "draft"
) -> None:
    """BundleError naming the first id that stands for something else; files of the same content are not parsed.
    setting: what names the other bundle."""
    ours, theirs = (one.files.get(one.text.tokenizer) for one in (manifest, draft))
    if ours is not None and ours == theirs:
        return
    served, guessed = _vocabulary(folder / manifest.text.tokenizer), _vocabulary(draft_folder / draft.text.tokenizer)
    if draft.diffusion is not None and draft.diffusion.mask_token not in served:
        guessed.pop(draft.diffusion.mask_token, None)  # it is never proposed
    if served != guessed:
        token = min(token for token in served.keys() | guessed.keys() if served.get(token) != guessed.get(token))
        there, here = (repr(each[token])[:40] if token in each else "no token" for each in (guessed, served))
        raise BundleError(
            f"{setting}: {draft.name} has other tokens than {manifest.name}: {token} is {there} there and {here} here; "
            "both must have one tokenizer"
        )


def _vocabulary(path: Path) -> Vocabulary:
    try:
        content = msgspec.json.decode(read_bytes(path, TOKENIZER_BYTES), type=dict[str, Any])
        tokens = content["model"]["vocab"]
        # A mapping of byte pair encodings, a list of [text, score] of unigram models.
        pairs = tokens.items() if isinstance(tokens, dict) else [(text, at) for at, (text, *_) in enumerate(tokens)]
        added = [(token["content"], token["id"]) for token in content.get("added_tokens") or ()]
        return {int(token): str(text) for text, token in (*pairs, *added)}
    except OSError as error:
        raise BundleError(f"draft: {path} cannot be read: {shown(error)}") from error
    except (msgspec.MsgspecError, UnicodeError, RecursionError, KeyError, TypeError, ValueError, AttributeError):
        raise BundleError(f"draft: {path} is no tokenizer.json whose tokens can be compared") from None
