"""A text cut into windows, each read by itself. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextWindow:
    """Tokens that are read together; those from `first` on are predicted from all before them in the window."""

    tokens: tuple[int, ...]
    first: int

    @property
    def inputs(self) -> tuple[int, ...]:
        """What the model reads: the last token is only predicted."""
        return self.tokens[:-1]

    @property
    def targets(self) -> tuple[int, ...]:
        """The tokens that are scored; the logits of each are those of the position before it."""
        return self.tokens[self.first :]


def cut(tokens: Sequence[int], context: int, stride: int, bos: tuple[int, ...] = ()) -> list[TextWindow]:
    """Windows of at most `context` tokens, each `stride` tokens behind the one before and beginning with `bos`.

    No token is scored twice; where windows overlap, a token is scored in the first that holds it, behind most of its
    past. The first token of a window without `bos` has nothing before it and is not scored there. Empty when nothing
    can be scored.
    """
    room = context - len(bos)
    windows: list[TextWindow] = []
    scored = 0
    for start in range(0, len(tokens), max(1, min(stride, room))):
        stop = min(start + room, len(tokens))
        first = max(scored, start + (0 if bos else 1))
        if first < stop:
            windows.append(TextWindow((*bos, *tokens[start:stop]), len(bos) + first - start))
        scored = stop
        if stop == len(tokens):
            break
    return windows
