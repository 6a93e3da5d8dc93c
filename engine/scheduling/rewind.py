"""Going back: a live sequence forgets its newest tokens, and what comes next is what came after them before."""

from engine.cache.pages import PagePool
from engine.scheduling.admission import pages_for
from engine.scheduling.sequence import Sequence


def rewind(sequence: Sequence, pages: PagePool, generated: int) -> None:
    """Keep the prompt and the first `generated` tokens behind it, and the computed columns that they still fill.

    ValueError unless 0 <= generated <= sequence.generated. A page that others may find by its contents is never
    written again: of one that is cut in two nothing is kept, its first tokens are computed once more. A block that is
    cut in two is denoised again behind the tokens that are left of it.
    """
    if not 0 <= generated <= sequence.generated:
        raise ValueError(f"{sequence.id} has {sequence.generated} tokens, it cannot go back to {generated}")
    del sequence.tokens[sequence.prompt_tokens + generated :]
    sequence.forecasts = ()  # they were of what came behind the token that was the newest
    size = pages.page_columns
    if sequence.block is not None:
        sequence.block.begin(len(sequence.tokens) % sequence.block_length)
    kept = min(sequence.computed, sequence.settled_tokens if sequence.block is not None else len(sequence.tokens) - 1)
    if kept // size < sequence.registered:
        kept = sequence.shareable_pages(kept // size, size) * size
    sequence.computed = kept
    sequence.registered = min(sequence.registered, kept // size)
    del sequence.keys[sequence.shareable_pages(len(sequence.tokens) // size, size) :]
    count = pages_for(kept, size)
    pages.release(sequence.pages[count:])
    del sequence.pages[count:]
