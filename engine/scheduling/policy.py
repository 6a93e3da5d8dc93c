"""Sharing out the rows of a pass: decodes first, then prefill, then guesses where rows would be padding."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.bundle.variant import FREE_PAST_STEP, PassShape, ShapeTable
from engine.scheduling.costs import CostTable
from engine.scheduling.slots import slot_rows

FREE_ROW_STEPS = (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256, 384, 512, 1024)

# Rows of a prompt that read a column in the time in which decodes of their own read one; measured at 16 to 128 rows.
ROWS_PER_READING = 5
CHUNK_READINGS = 3  # what it takes beside that to make floats of the past of a prompt, once for all its rows

# Of two passes with prompt rows the shorter one is taken where it has so much of the other's rows per millisecond: the
# last rows of a wide pass often win next to nothing, and every stream waits for them.
WORTH_A_GAP = 0.95


@dataclass(frozen=True, slots=True)
class Demand:
    """Rows wanted from one pool: of the sequences that decode, one row each where they take one token after the other,
    and all prefill rows together.

    kv_only_rows: the prefill rows before the first whose logits are read; a KV-only shape may compute them.
    """

    decodes: int
    prefill_rows: int
    prefill_first: bool = False  # the last mixed pass had no room for prefill: reserve some now
    kv_only_rows: int = 0


@dataclass(frozen=True, slots=True)
class Share:
    """The shape of a pass and how many of its rows go to decodes and to prefill.

    forgone_ms: how much longer it takes than its rows would in the best shape, had the pool been laid for that one.
    """

    shape: PassShape
    decodes: int
    prefill_rows: int
    forgone_ms: float = 0.0

    @property
    def useful(self) -> int:
        """Rows that are not padding."""
        return self.decodes + self.prefill_rows


@dataclass(frozen=True, slots=True)
class Extent:
    """Columns of a pool. referenced: up to the end of the highest page in use; a pass must span them.

    preferred: what it had better span (pages cached for their contents, or the present width); it never costs rows.
    width: as the pool is laid now. forgone_ms: what staying so has cost since another width became the better one.
    prompt_past: computed columns of the prompt that goes on first; counts for segmented shapes only.
    """

    referenced: int
    preferred: int
    width: int
    forgone_ms: float = 0.0
    prompt_past: int = 0


def share_rows(shapes: ShapeTable, costs: CostTable, demand: Demand, extent: Extent, max_gap_ms: float) -> Share:
    """Choose the shape of a pass: of those that may run, the one with the most useful rows per millisecond.

    Which may run, where the gap of a pass is its price times the passes it takes to serve every decode once:

    1. No sequence decodes: every shape.
    2. Sequences decode: those that serve decodes with a gap of at most `max_gap_ms`, or if the decodes alone take
       longer, with the least gap there is. What prefill adds never lengthens the gap over that bound.
    3. The same, but the last passes had no room for prefill: also those with up to twice the least gap, and those
       that serve no decode at all, so that both take turns; of these the ones with prefill rows, if there are any, else
       the cheapest that has some: where decodes have rows of their own, every shape with a prompt may be a wide one.

    The price of a pass is its time and that of re-laying the pool for it. Re-laying costs less by what not doing it
    has cost so far, as in the ski rental problem (Karlin et al., Competitive snoopy caching, 1988).
    """
    shares = [_split(shape, demand, shapes.slots, shapes.unit) for shape in _options(shapes, demand, extent)]
    shares += [
        Share(shape, 0, _fitting(demand.kv_only_rows, shape.rows, shapes.unit))
        for shape in _kv_only_options(shapes, demand, extent)
    ]
    shares = [share for share in shares if share.useful]
    run_ms = {share: costs.milliseconds(share.shape) for share in shares}
    relay_ms = {share: max(0.0, costs.switch_ms(extent.width, share.shape) - extent.forgone_ms) for share in shares}
    price = {share: run_ms[share] + relay_ms[share] for share in shares}
    gap = {share: price[share] * -(-demand.decodes // share.decodes) for share in shares if share.decodes}
    least = min(gap.values(), default=0.0)
    if not demand.decodes:
        allowed = shares
    elif not demand.prefill_first:
        allowed = [share for share in gap if gap[share] <= max(max_gap_ms, least)]
    else:
        allowed = [share for share in gap if gap[share] <= max(max_gap_ms, 2 * least)]
        allowed += [share for share in shares if not share.decodes]
        cheapest = sorted((share for share in gap if share.prefill_rows), key=lambda share: gap[share])[:1]
        allowed = [share for share in allowed if share.prefill_rows] or cheapest or allowed
    chosen = max(allowed, key=lambda share: (share.useful / price[share], share.useful))
    if demand.decodes and chosen.prefill_rows:
        enough = WORTH_A_GAP * chosen.useful / price[chosen]
        near = [share for share in allowed if share.prefill_rows and share.useful / price[share] >= enough]
        chosen = min(near, key=lambda share: price[share])
    best = max(allowed, key=lambda share: (share.useful / run_ms[share], share.useful))
    return replace(chosen, forgone_ms=max(0.0, run_ms[chosen] - run_ms[best] * chosen.useful / best.useful))


def _options(shapes: ShapeTable, demand: Demand, extent: Extent) -> Sequence[PassShape]:
    if shapes.free:
        most = min(shapes.max_rows, demand.decodes + demand.prefill_rows)
        if shapes.segmented:
            return [_segmented(rows, demand, extent) for rows in (*(r for r in FREE_ROW_STEPS if r < most), most)]
        past = max(shapes.round_past(extent.preferred), shapes.round_past(extent.referenced))
        steps = [rows for rows in FREE_ROW_STEPS if rows < most]
        return [PassShape(rows, past) for rows in [*steps, most]]
    roomy, tight = shapes.candidates(extent.preferred), shapes.candidates(extent.referenced)
    return roomy if roomy and roomy[-1].rows >= tight[-1].rows else tight


def _segmented(rows: int, demand: Demand, extent: Extent) -> PassShape:
    """The past of a pass is what its rows read: a decode all columns of its own, a prompt row its prompt's for less."""
    prompt_rows = max(0, rows - demand.decodes)
    prompt_readings = CHUNK_READINGS + prompt_rows / ROWS_PER_READING if prompt_rows else 0
    read = extent.referenced + int(prompt_readings * extent.prompt_past)
    return PassShape(rows, max(1, -(-read // FREE_PAST_STEP)) * FREE_PAST_STEP)


def _kv_only_options(shapes: ShapeTable, demand: Demand, extent: Extent) -> Sequence[PassShape]:
    if not demand.kv_only_rows:
        return ()
    return shapes.prefill_candidates(extent.preferred) or shapes.prefill_candidates(extent.referenced)


def _split(shape: PassShape, demand: Demand, slots: int, unit: int) -> Share:
    if slots:
        return Share(shape, *slot_rows(shape, slots, demand.decodes, demand.prefill_rows))
    reserved = min(demand.prefill_rows, shape.rows, max(unit, shape.rows // 4)) if demand.prefill_first else 0
    decodes = _fitting(demand.decodes, shape.rows - reserved, unit)
    return Share(shape, decodes, _fitting(demand.prefill_rows, shape.rows - decodes, unit))


def _fitting(wanted: int, rows: int, unit: int) -> int:
    """How many of the rows wanted fit: all, or whole units."""
    return wanted if wanted <= rows else rows - rows % unit
