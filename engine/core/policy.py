"""Sharing out the rows of a step: decodes first, then prefill, then guesses where rows would be padding."""

from bisect import bisect_left
from collections import abc
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from math import inf

from engine.bundle.variant import FREE_PAST_STEP, ShapeTable, StepShape

OBSERVED_SHARE = 0.05
COPY_BYTES_PER_MS = 4e6  # of a strided copy; only the order of magnitude matters


class CostTable:
    """Cost of any shape from measured ones.

    Piecewise linear in rows, then in past; flat outside the measured range below, linear beyond it above.
    An empty table says every step costs 1 ms plus nothing: then the most useful rows win.
    """

    def __init__(self, measured: Mapping[StepShape, float], slot_ms: float = 0.0) -> None:
        self._drift = 1.0  # observed over expected: a machine is not always as it was when it was measured
        self._slot_ms = slot_ms  # to re-lay one slot of a pool
        self._by_past: dict[int, list[tuple[int, float]]] = {}
        for shape, milliseconds in sorted(measured.items()):
            self._by_past.setdefault(shape.past, []).append((shape.rows, milliseconds))
        self._exact = dict(measured)

    @property
    def is_measured(self) -> bool:
        """Whether the times are a machine's; without measured ones every step is said to cost the same."""
        return bool(self._by_past)

    def milliseconds(self, shape: StepShape) -> float:
        return self._measured(shape) * self._drift

    def observe(self, shape: StepShape, milliseconds: float) -> None:
        """Learn from a step: the ratio of observed to expected follows slowly, within a factor of 8."""
        if self._by_past:
            ratio = min(8.0, max(0.125, milliseconds / self._measured(shape)))
            self._drift += OBSERVED_SHARE * (ratio - self._drift)

    def _measured(self, shape: StepShape) -> float:
        if shape in self._exact:
            return self._exact[shape]
        if not self._by_past:
            return 1.0
        points = [(past, _at_rows(line, shape.rows)) for past, line in sorted(self._by_past.items())]
        return _interpolate(points, shape.past)

    def switch_ms(self, width: int, shape: StepShape) -> float:
        """What it costs to re-lay a pool of `width` slots for `shape`; nothing when it is as it should be."""
        return 0.0 if shape.past == width else self._slot_ms * min(width, shape.past)


def _at_rows(line: list[tuple[int, float]], rows: int) -> float:
    """Along rows. From a single point upwards cost is taken as proportional: never too cheap."""
    if len(line) == 1:
        return line[0][1] * max(1.0, rows / line[0][0])
    return _interpolate(line, rows)


def _interpolate(points: list[tuple[int, float]], at: int) -> float:
    places = [place for place, _ in points]
    right = bisect_left(places, at)
    if right < len(points) and places[right] == at:
        return points[right][1]
    if right == 0 or len(points) == 1:
        return points[0][1]
    left, right = (right - 1, right) if right < len(points) else (right - 2, right - 1)
    (x0, y0), (x1, y1) = points[left], points[right]
    return max(y0, y0 + (y1 - y0) * (at - x0) / (x1 - x0)) if at > x1 else y0 + (y1 - y0) * (at - x0) / (x1 - x0)


def slot_rows(shape: StepShape, slots: int, decodes: int, prefill_rows: int) -> tuple[int, int]:
    """How many decodes and prefill rows a step serves: neither takes rows of the other."""
    decode_rows = min(shape.rows, slots)
    return min(decodes, decode_rows), min(prefill_rows, shape.rows - decode_rows)


FREE_ROW_STEPS = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512, 1024)

# Rows of a prompt that read a slot in the time in which decodes of their own read one; measured at 16 to 128 rows.
ROWS_PER_READING = 5
CHUNK_READINGS = 3  # what it takes beside that to make floats of the past of a prompt, once for all its rows

# Beside prompts decodes take so many times as long as in a step in which the sequences of these prompts decode too, and
# no longer than the gap allowed. Of 4 streams that come with 1,024 tokens, over llama-server's, first token and 95th
# percentile of gaps: 0.67 and 1.0 at 2.5 times, 0.50 and 1.0 at 2.75,
# 0.44 and 1.0 and once more 0.56 and 1.1 at 2.85, 0.42 and 1.3 at 2.9, 0.30 and 1.3 at 3.3 (`make bench-peers`).
MOST_TIMES_TOGETHER = 2.85

# Of two steps with prompt rows the shorter one is taken where it has so much of the other's rows per millisecond: the
# last rows of a wide step often win next to nothing, and every stream waits for them.
WORTH_A_GAP = 0.95


@dataclass(frozen=True, slots=True)
class PromptPiece:
    """Rows that a prompt may take now, in multiples of `whole`: an image whose rows see each other is not cut."""

    rows: int
    whole: int = 1


@dataclass(frozen=True, slots=True)
class Demand:
    """Rows wanted from one pool: of the sequences that decode, one row each where they take one token after the other,
    and all prefill rows together.

    kv_only_rows: the prefill rows before the first whose logits are read; a KV-only shape may compute them. pieces: of
    the prefill rows, in the order in which they are taken; () = they can be cut anywhere. prompts, prompt_slots:
    sequences that they are of and that will decode, and the KV slots of their prompts.
    """

    decodes: int
    prefill_rows: int
    prefill_first: bool = False  # the last mixed step had no room for prefill: reserve some now
    kv_only_rows: int = 0
    pieces: tuple[PromptPiece, ...] = ()
    prompts: int = 0
    prompt_slots: int = 0

    def prefill_within(self, rows: int, unit: int) -> int:
        """How many of the prefill rows fit into so many: no prompt goes before another whose image is too large."""
        if not self.pieces:
            return _fitting(self.prefill_rows, rows, unit)
        taken = 0
        for piece in self.pieces:
            fitting = min(piece.rows, rows - taken)
            taken += fitting - fitting % piece.whole
            if fitting < piece.rows:
                break
        return taken

    @property
    def least_prefill(self) -> int:
        """Fewest rows that prompts can do anything with."""
        return next((piece.whole for piece in self.pieces if piece.rows), 1)


@dataclass(frozen=True, slots=True)
class Share:
    """The shape of a step and how many of its rows go to decodes and to prefill.

    regret_ms: how much longer it takes than its rows would in the best shape, had the pool been laid for that one.
    """

    shape: StepShape
    decodes: int
    prefill_rows: int
    regret_ms: float = 0.0

    @property
    def useful(self) -> int:
        return self.decodes + self.prefill_rows


@dataclass(frozen=True, slots=True)
class Extent:
    """KV slots of a pool. referenced: up to the end of the highest block in use; a step must span them.

    preferred: what it had better span (blocks cached for their contents, or the present width); it never costs rows.
    width: as the pool is laid now. regret_ms: what staying so has cost since another width became the better one.
    prompt_past: computed slots of the prompt that goes on first; counts for segmented shapes only.
    """

    referenced: int
    preferred: int
    width: int
    regret_ms: float = 0.0
    prompt_past: int = 0


def share_rows(shapes: ShapeTable, costs: CostTable, demand: Demand, extent: Extent, max_gap_ms: float) -> Share:
    """Choose the shape of a step: of those that may run, the one with the most useful rows per millisecond.

    Which may run, where the gap of a step is its price times the steps it takes to serve every decode once:

    1. No sequence decodes: every shape.
    2. Sequences decode: those that serve decodes with a gap of at most `max_gap_ms`, or if the decodes alone take
       longer, with the least gap there is. What prefill adds never lengthens the gap over that bound, nor, where steps
       have any number of rows, over `MOST_TIMES_TOGETHER` times a step in which all sequences decode.
    3. The same, but the last steps had no room for prefill: also those with up to twice the least gap, and those
       that serve no decode at all, so that both take turns; of these the ones with prefill rows, if there are any, else
       the cheapest that has some: where decodes have rows of their own, every shape with a prompt may be a wide one.

    The price of a step is its time and that of re-laying the pool for it. Re-laying costs less by what not doing it
    has cost so far, as in the ski rental problem (Karlin et al., Competitive snoopy caching, 1988).
    """
    together_ms = inf if shapes.fixed else _together_ms(shapes, costs, demand, extent)
    allowed = _allowed(_candidates(shapes, costs, demand, extent), demand, max_gap_ms, together_ms)
    chosen = max(allowed, key=lambda each: (each.share.useful / each.price_ms, each.share.useful))
    if demand.decodes and chosen.share.prefill_rows:
        enough = WORTH_A_GAP * chosen.share.useful / chosen.price_ms
        near = [each for each in allowed if each.share.prefill_rows and each.share.useful / each.price_ms >= enough]
        chosen = min(near, key=lambda each: each.price_ms)
    best = max(allowed, key=lambda each: (each.share.useful / each.run_ms, each.share.useful))
    best_ms = best.run_ms * chosen.share.useful / best.share.useful
    return replace(chosen.share, regret_ms=max(0.0, chosen.run_ms - best_ms))


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A share and its time in milliseconds: of the step, with the pool re-laid for it, and until all decodes had one.

    gap_ms: 0 where it serves no decode.
    """

    share: Share
    run_ms: float
    price_ms: float
    gap_ms: float


def _candidates(shapes: ShapeTable, costs: CostTable, demand: Demand, extent: Extent) -> list[_Candidate]:
    shares = [_split(shape, demand, shapes.slots, shapes.unit) for shape in _options(shapes, demand, extent)]
    if shapes.segmented and not shapes.fixed and demand.pieces:  # what an image is too large for is no padding
        shares = [replace(share, shape=_segmented(share.useful, demand, extent)) for share in shares if share.useful]
    shares += [
        Share(shape, 0, _fitting(demand.kv_only_rows, shape.rows, shapes.unit))
        for shape in _kv_only_options(shapes, demand, extent)
    ]
    found = []
    for share in shares:
        if share.useful:
            run_ms = costs.milliseconds(share.shape)
            price_ms = run_ms + max(0.0, costs.switch_ms(extent.width, share.shape) - extent.regret_ms)
            turns = -(-demand.decodes // share.decodes) if share.decodes else 0
            found.append(_Candidate(share, run_ms, price_ms, price_ms * turns))
    return found


def _together_ms(shapes: ShapeTable, costs: CostTable, demand: Demand, extent: Extent) -> float:
    """A step in which the sequences of the prompts decode too, each over all of its prompt.

    How many decode just now does not change it, so a prompt is read in pieces of about one size.
    """
    read = extent.referenced + (demand.prompt_slots if shapes.segmented else 0)
    return costs.milliseconds(StepShape(demand.decodes + demand.prompts, read))


def _allowed(candidates: list[_Candidate], demand: Demand, max_gap_ms: float, together_ms: float) -> list[_Candidate]:
    """The three cases of `share_rows`. together_ms: of a step in which all sequences decode."""
    if not demand.decodes:
        return candidates
    serving = [each for each in candidates if each.share.decodes]
    least_ms = min((each.gap_ms for each in serving), default=0.0)
    if not demand.prefill_first:
        # The pool may be laid wider than what is read, or be laid anew: the least gap counts that.
        longest_ms = max(least_ms, min(max_gap_ms, MOST_TIMES_TOGETHER * max(least_ms, together_ms)))
        return [each for each in serving if each.gap_ms <= longest_ms]
    patient = [each for each in serving if each.gap_ms <= max(max_gap_ms, 2 * least_ms)]
    patient += [each for each in candidates if not each.share.decodes]
    if with_prompts := [each for each in patient if each.share.prefill_rows]:
        return with_prompts
    return sorted((each for each in serving if each.share.prefill_rows), key=lambda each: each.gap_ms)[:1] or patient


def _options(shapes: ShapeTable, demand: Demand, extent: Extent) -> abc.Sequence[StepShape]:
    if not shapes.fixed:
        most = min(shapes.max_rows, demand.decodes + demand.prefill_rows)
        if shapes.segmented:
            steps = sorted({*(r for r in (*FREE_ROW_STEPS, *_piece_ends(demand)) if 0 < r < most), most})
            return [_segmented(rows, demand, extent) for rows in steps]
        past = max(shapes.round_past(extent.preferred), shapes.round_past(extent.referenced))
        steps = [rows for rows in FREE_ROW_STEPS if rows < most]
        return [StepShape(rows, past) for rows in [*steps, most]]
    roomy, tight = shapes.candidates(extent.preferred), shapes.candidates(extent.referenced)
    return roomy if roomy and roomy[-1].rows >= tight[-1].rows else tight


def _piece_ends(demand: Demand) -> list[int]:
    """Rows of steps that end with a piece, with all decodes and without any."""
    ends = list(accumulate(piece.rows for piece in demand.pieces))
    return [*ends, *(demand.decodes + end for end in ends)]


def _segmented(rows: int, demand: Demand, extent: Extent) -> StepShape:
    """The past of a step is what its rows read: a decode all slots of its own, a prompt row its prompt's for less."""
    prompt_rows = max(0, rows - demand.decodes)
    prompt_readings = CHUNK_READINGS + prompt_rows / ROWS_PER_READING if prompt_rows else 0
    read = extent.referenced + int(prompt_readings * extent.prompt_past)
    return StepShape(rows, max(1, -(-read // FREE_PAST_STEP)) * FREE_PAST_STEP)


def _kv_only_options(shapes: ShapeTable, demand: Demand, extent: Extent) -> abc.Sequence[StepShape]:
    if not demand.kv_only_rows:
        return ()
    return shapes.prefill_candidates(extent.preferred) or shapes.prefill_candidates(extent.referenced)


def _split(shape: StepShape, demand: Demand, slots: int, unit: int) -> Share:
    if slots:
        return Share(shape, *slot_rows(shape, slots, demand.decodes, demand.prefill_rows))
    least = max(unit, demand.least_prefill, shape.rows // 4)
    reserved = min(demand.prefill_rows, shape.rows, least) if demand.prefill_first else 0
    decodes = _fitting(demand.decodes, shape.rows - reserved, unit)
    return Share(shape, decodes, demand.prefill_within(shape.rows - decodes, unit))


def _fitting(wanted: int, rows: int, unit: int) -> int:
    """How many of the rows wanted fit: all, or whole units."""
    return wanted if wanted <= rows else rows - rows % unit


@dataclass(frozen=True, slots=True)
class Growth:
    """A step that may have guesses beside the rows of `share`.

    guess_past: slots that a guess reads, of a segmented step. is_bounded: rows of prompts wait, so that only padding
    is filled.
    """

    shapes: ShapeTable
    costs: CostTable
    share: Share
    guess_past: int = 0
    max_gap_ms: float = 0.0
    is_bounded: bool = False

    @property
    def useful(self) -> int:
        """Rows of the step that are no guesses and no padding."""
        return self.share.useful

    def most(self, wanted: int) -> int:
        """Rows that `wanted` guesses may take: padding, and others if times are known and no gap grows too long.

        Where sequences are computed whole in any case, all that there are.
        """
        padding = self.share.shape.rows - self.useful
        if self.is_bounded or not (self.costs.is_measured or self.shapes.recomputes):
            return min(wanted, padding)
        widest = self.shapes.max_rows if not self.shapes.fixed else max(shape.rows for shape in self._same_past())
        rows = min(wanted, widest - self.useful)
        longest_ms = max(self.max_gap_ms, self.milliseconds(0))
        while rows > padding and self.milliseconds(rows) > longest_ms:
            rows -= 1
        return rows

    def shape(self, guesses: int) -> StepShape:
        """The narrowest shape for the rows of `share` and so many guesses."""
        plain, rows = self.share.shape, self.useful + guesses
        if rows <= plain.rows:
            return plain
        if self.shapes.fixed:
            return next(shape for shape in self._same_past() if shape.rows >= rows)
        if not self.shapes.segmented:
            return StepShape(rows, plain.past)
        read = plain.past + guesses * self.guess_past // ROWS_PER_READING
        step = self.shapes.past_step
        return StepShape(rows, -(-read // step) * step)

    def milliseconds(self, guesses: int) -> float:
        return self.costs.milliseconds(self.shape(guesses))

    def _same_past(self) -> list[StepShape]:
        """Fixed shapes of at least the rows of the step that need no other layout of the pool, fewest rows first."""
        plain = self.share.shape
        return sorted(shape for shape in self.shapes.fixed if shape.past == plain.past and shape.rows >= plain.rows)
