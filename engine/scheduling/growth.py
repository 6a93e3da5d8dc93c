"""How far a pass may grow for guesses, and what it then costs."""

from dataclasses import dataclass

from engine.bundle.variant import PassShape, ShapeTable
from engine.scheduling.costs import CostTable
from engine.scheduling.policy import ROWS_PER_READING, Share


@dataclass(frozen=True, slots=True)
class Growth:
    """A pass that may have guesses beside the rows of `share`.

    guess_past: columns that a guess reads, of a segmented pass. is_bounded: rows of prompts wait, so that only padding
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
        """Rows of the pass that are no guesses and no padding."""
        return self.share.useful

    def most(self, wanted: int) -> int:
        """Rows that `wanted` guesses may take: padding, and others if times are known and no gap grows too long.

        Where sequences are computed whole in any case, all that there are.
        """
        padding = self.share.shape.rows - self.useful
        if self.is_bounded or not (self.costs.is_measured or self.shapes.recomputes):
            return min(wanted, padding)
        widest = self.shapes.max_rows if self.shapes.free else max(shape.rows for shape in self._same_past())
        rows = min(wanted, widest - self.useful)
        longest_ms = max(self.max_gap_ms, self.milliseconds(0))
        while rows > padding and self.milliseconds(rows) > longest_ms:
            rows -= 1
        return rows

    def shape(self, guesses: int) -> PassShape:
        """The narrowest shape for the rows of `share` and so many guesses."""
        plain, rows = self.share.shape, self.useful + guesses
        if rows <= plain.rows:
            return plain
        if not self.shapes.free:
            return next(shape for shape in self._same_past() if shape.rows >= rows)
        if not self.shapes.segmented:
            return PassShape(rows, plain.past)
        read = plain.past + guesses * self.guess_past // ROWS_PER_READING
        step = self.shapes.past_step
        return PassShape(rows, -(-read // step) * step)

    def milliseconds(self, guesses: int) -> float:
        """What the pass takes with so many guesses."""
        return self.costs.milliseconds(self.shape(guesses))

    def _same_past(self) -> list[PassShape]:
        """Fixed shapes of at least the rows of the pass that need no other layout of the pool, fewest rows first."""
        plain = self.share.shape
        return sorted(shape for shape in self.shapes.fixed if shape.past == plain.past and shape.rows >= plain.rows)
