"""Sharing out the rows of a pass: decodes first, then prefill, then guesses where rows would be padding."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.bundle.variant import PassShape, ShapeTable
from engine.scheduling.costs import CostTable

FREE_ROW_STEPS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)


@dataclass(frozen=True, slots=True)
class Demand:
    """Rows wanted from one pool: sequences with one row each, and all prefill rows together."""

    decodes: int
    prefill_rows: int
    prefill_first: bool = False  # the last mixed pass had no room for prefill: reserve some now


@dataclass(frozen=True, slots=True)
class Share:
    """The shape of a pass and how many of its rows go to decodes and to prefill."""

    shape: PassShape
    decodes: int
    prefill_rows: int

    @property
    def useful(self) -> int:
        """Rows that are not padding."""
        return self.decodes + self.prefill_rows


@dataclass(frozen=True, slots=True)
class Extent:
    """Columns of a pool. referenced: up to the end of the highest page in use; a pass must span them.

    wanted: what it had better span (pages kept for their contents, or the present width); it never costs rows.
    width: as the pool is laid now.
    """

    referenced: int
    wanted: int
    width: int


def share_rows(shapes: ShapeTable, costs: CostTable, demand: Demand, extent: Extent, max_gap_ms: float) -> Share:
    """Pick the shape with the most useful rows per millisecond among those within the gap bound.

    The bound holds only while somebody decodes. When no shape meets it, the cheapest pass is taken.
    """
    options = [_split(shape, demand) for shape in _options(shapes, demand, extent)]
    price = {share: costs.milliseconds(share.shape) + costs.switch_ms(extent.width, share.shape) for share in options}
    bounded = [share for share in options if price[share] <= max_gap_ms]
    if demand.decodes and not bounded:
        return min(options, key=lambda share: (price[share], -share.useful))
    eligible = bounded if demand.decodes else options
    return max(eligible, key=lambda share: (share.useful / price[share], share.useful))


def _options(shapes: ShapeTable, demand: Demand, extent: Extent) -> Sequence[PassShape]:
    if shapes.free:
        wanted = min(shapes.max_rows, demand.decodes + demand.prefill_rows)
        past = max(shapes.round_past(extent.wanted), shapes.round_past(extent.referenced))
        steps = [rows for rows in FREE_ROW_STEPS if rows < wanted]
        return [PassShape(rows, past) for rows in [*steps, wanted]]
    roomy, tight = shapes.candidates(extent.wanted), shapes.candidates(extent.referenced)
    return roomy if roomy and roomy[-1].rows >= tight[-1].rows else tight


def _split(shape: PassShape, demand: Demand) -> Share:
    reserved = min(demand.prefill_rows, max(1, shape.rows // 4)) if demand.prefill_first else 0
    decodes = min(demand.decodes, shape.rows - reserved)
    return Share(shape, decodes, min(demand.prefill_rows, shape.rows - decodes))
