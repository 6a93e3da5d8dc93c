"""Does a sequence fit - ever, and now? Arithmetic on counts, so that it can be checked by hand."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capacity:
    """Limits of one sequence. `columns` of a pool hold cached tokens; the newest token needs none."""

    columns: int
    max_context: int

    @property
    def tokens_per_sequence(self) -> int:
        """Most tokens, prompt and completion together, of one sequence."""
        return min(self.max_context, self.columns + 1)

    @property
    def tokens_per_input(self) -> int:
        """Most tokens of a text of which only a vector is wanted: nothing comes behind it."""
        return min(self.max_context, self.columns)


def pages_for(tokens: int, page_columns: int) -> int:
    """Pages that hold `tokens` cached tokens."""
    return -(-tokens // page_columns)


def fits_now(needed: int, available: int, reserved: int) -> bool:
    """Whether `needed` fresh pages may be taken, leaving those that are reserved for sequences of the pool."""
    return needed + reserved <= available
