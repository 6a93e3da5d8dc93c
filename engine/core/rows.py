"""Who wants rows of a step, the rows of a sequence in it, and from what was sampled to its tokens."""

from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Sequence as Run
from dataclasses import dataclass, field

from engine.bundle.specs import ForecastSpec
from engine.bundle.variant import ShapeTable
from engine.core.block_diffusion import ActiveBlock, Prediction
from engine.core.forecast_tree import ForecastTree, TreeOutcome, tree_of
from engine.core.guesses import Guesser
from engine.core.kv_queues import Rows
from engine.core.plan import Rules, Segment, SequenceUpdate
from engine.core.policy import PromptPiece
from engine.core.prefixes import StateBorders
from engine.core.sequence import Capacity, Sequence, append_tokens, blocks_for, ends_within, room
from engine.core.speculation import GuessKind, Outcome, verify
from engine.request import Request


@dataclass(frozen=True, slots=True)
class Wants:
    """Who wants rows of one pool. ready: sequences that decode. prompts: and the rows that each may have now.
    kv_only: of these the rows whose logits nobody reads. texts_too: prompts, and texts beyond their share."""

    ready: list[Sequence]
    prompts: Rows = field(default_factory=list)
    kv_only: Rows = field(default_factory=list)
    texts_too: Rows = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Guesses:
    """By sequence id: guessed tokens behind the newest one, or a tree of them in its place."""

    drafts: dict[str, tuple[int, ...]]
    trees: dict[str, ForecastTree]

    @property
    def rows(self) -> int:
        return sum(map(len, self.drafts.values())) + sum(len(tree.tokens) - 1 for tree in self.trees.values())


def without(queue: Mapping[str, Sequence], late: Collection[str]) -> list[Sequence]:
    return [sequence for sequence_id, sequence in queue.items() if sequence_id not in late]


def open_rows(queue: Iterable[Sequence], late: Collection[str], logprob_rows: int) -> list[tuple[Sequence, int]]:
    """Rows each prefill may take, oldest first. The last one would yield the next token, so a late one leaves it.
    logprob_rows: most rows in all that the log-probabilities of prompt tokens are read from."""
    found = []
    for sequence in sorted(queue, key=lambda s: s.rank):
        rows = min(sequence.rows_wanted - (sequence.id in late), sequence.most_rows)
        if not sequence.has_prompt_logprobs:
            whole = sequence.whole_rows if logprob_rows > 0 else 0
            rows = min(rows, max(logprob_rows, whole))
            logprob_rows -= rows
        found.append((sequence, rows))
    return found


def kv_only_rows(prefills: Iterable[tuple[Sequence, int]]) -> list[tuple[Sequence, int]]:
    """Of the rows each prefill may take, those before the first whose logits are read."""
    return [(sequence, min(rows, sequence.first_logit_row - sequence.computed)) for sequence, rows in prefills]


def pieces_of(prompts: Rows) -> tuple[PromptPiece, ...]:
    """The rows that each prompt may take, and how many of them lie in one step; () where all can be cut anywhere."""
    is_cut = not any(sequence.request.images and sequence.whole_rows > 1 for sequence, _ in prompts)
    return () if is_cut else tuple(PromptPiece(max(0, rows), sequence.whole_rows) for sequence, rows in prompts)


def take_rows(wanted: Iterable[tuple[Sequence, int]], rows: int) -> list[tuple[Sequence, int]]:
    """Share out `rows` in the order given: to each up to its number of what is left, in whole blocks and images."""
    taken = []
    for sequence, most in wanted:
        share = min(rows, most)
        share -= share % sequence.whole_rows
        if share > 0:
            taken.append((sequence, share))
            rows -= share
    return taken


def take_turns(ready: Iterable[Sequence], rows: int) -> list[tuple[Sequence, int]]:
    """Share out `rows` to sequences that decode, those first that were served the longest ago."""
    by_turn = sorted(ready, key=lambda sequence: (sequence.last_served, sequence.rank))
    return take_rows([(sequence, sequence.rows_wanted) for sequence in by_turn], rows)


def guessing(decodes: Iterable[tuple[Sequence, int]]) -> list[Sequence]:
    """Those that may have guesses behind their last token: a block has no last one."""
    return [sequence for sequence, _ in decodes if sequence.active_block is None]


# Of a step that also decodes: each costs the host a log-softmax over the vocabulary, which no graph's time shows.
PROMPT_LOGPROB_ROWS = 32
FUSED_LOGPROB_ROWS = 1  # a fused graph gives logits of a prompt's last row only


def prefills_of(
    shapes: ShapeTable, queue: Iterable[Sequence], late: Collection[str], has_decodes: bool
) -> list[tuple[Sequence, int]]:
    """Prompts and the rows each may take, oldest first. A step of fused graphs has room for one prompt: the oldest."""
    if shapes.slots:
        return [(sequence, rows) for sequence, rows in open_rows(queue, late, FUSED_LOGPROB_ROWS) if rows > 0][:1]
    return open_rows(queue, late, PROMPT_LOGPROB_ROWS if has_decodes else shapes.max_rows)


def first_block(request: Request, tokens: int, unit: int) -> ActiveBlock | None:
    """The block that a sequence of `tokens` tokens denoises first; None where it takes one token after the other.
    ValueError when the model's steps are not made for its blocks."""
    denoising = request.params.denoising
    if denoising is None:
        return None
    if denoising.block_length != unit:
        raise ValueError(f"blocks of {denoising.block_length} tokens; those of this model have {unit}")
    return ActiveBlock(denoising, tokens % unit)


def block_segment(sequence: Sequence, rows: int, block_size: int) -> Segment:
    """Whole blocks behind those that are computed, to be kept; with the last of the rows wanted the block denoised.
    rows: a multiple of the block length, at most `sequence.rows_wanted`."""
    block, start = sequence.active_block, sequence.computed
    assert block is not None
    end = min(start + rows, sequence.final_tokens)
    tokens: tuple[int, ...] = tuple(sequence.tokens[start:end])
    masked: tuple[int, ...] = ()
    if rows == sequence.rows_wanted:
        tokens += block.row_tokens(sequence.tokens[end:])
        masked = tuple(end - start + place for place in block.masked)
    return Segment(
        sequence=sequence,
        tokens=tokens,
        first_position=start,
        blocks=tuple(sequence.blocks[sequence.freed : blocks_for(start, block_size)]),
        past_slots=start - sequence.freed * block_size,
        targets=tuple(sequence.blocks[i // block_size] * block_size + i % block_size for i in range(start, end)),
        logit_rows=len(masked),
        masked=masked,
        block_rows=sequence.block_length,
    )


def take_predictions(segment: Segment, predictions: Run[Prediction], limit: int) -> SequenceUpdate:
    """Settle tokens of the block that was denoised, if one was; they are new tokens once all of them are settled.
    An answer whose end is settled, and every token before it, waits for no others. limit: most tokens of a sequence."""
    sequence, block = segment.sequence, segment.sequence.active_block
    assert block is not None
    kept_rows = len(segment.targets)
    if not segment.masked:
        return SequenceUpdate(segment, (), kept_rows)
    block.take(predictions)
    leading = block.leading
    tokens = tuple(prediction.token for prediction in leading)
    if block.masked and not ends_within(sequence, tokens, limit):
        return SequenceUpdate(segment, (), kept_rows)
    taken = append_tokens(sequence, tokens, limit)
    block.begin(0)
    found = (prediction.logprob for prediction in leading[: len(taken)])
    return SequenceUpdate(segment, taken, kept_rows, logprobs=tuple(each for each in found if each is not None))


def make_segment(
    sequence: Sequence,
    rows: int,
    draft: tuple[int, ...],
    tree: ForecastTree | None,
    block_size: int,
    states: StateBorders,
) -> Segment:
    """The next `rows` tokens to compute and the guesses behind them; `tree` takes the place of a last lone row.
    Of a sequence that is denoised: its next blocks."""
    if sequence.active_block is not None:
        return block_segment(sequence, rows, block_size)
    start, end = sequence.computed, sequence.computed + rows
    known = () if sequence.has_prompt_logprobs else sequence.tokens[max(start, sequence.first_logit_row) + 1 : end + 1]
    sampled = 1 + len(draft) if end == len(sequence.tokens) else 0
    slots = range(start, end + (tree.depth if tree is not None else len(draft)))
    return Segment(
        sequence=sequence,
        tokens=tree.tokens if tree is not None else (*sequence.tokens[start:end], *draft),
        first_position=start,
        blocks=tuple(sequence.blocks[sequence.freed : blocks_for(start, block_size)]),
        past_slots=start - sequence.freed * block_size,
        targets=tuple(sequence.blocks[i // block_size] * block_size + i % block_size for i in slots),
        logit_rows=len(tree.tokens) if tree is not None else len(known) + sampled,
        logprob_tokens=tuple(known),
        tree=tree,
        state_key=states.origin(sequence),
        snapshots=states.wanted(sequence, end),
        block_rows=sequence.whole_rows,
    )


def take_tokens(
    segment: Segment, sampled: tuple[int, ...] | None, grown: TreeOutcome | None, guesser: Guesser, rules: Rules
) -> SequenceUpdate:
    """Add what was sampled to the sequence, and judge its guesses. grown: of its tree.
    `sampled` is None for a sequence that was not sampled: no guess is judged, and no part of a state is kept."""
    sequence = segment.sequence
    draft = segment.guesses if sampled is not None else ()
    sequence.forecasts = grown.candidates if grown is not None else ()
    if segment.tree is not None:
        draft, outcome = draft[: segment.tree.nodes - 1], Outcome(len(sampled or ()), sampled or ())
    elif sampled is None:
        outcome = Outcome(0 if rules.is_recurrent else len(segment.tokens) - segment.sampled_rows, ())
    else:
        outcome = verify(len(segment.tokens), draft, sampled)
    taken = append_tokens(sequence, outcome.new_tokens, rules.capacity.tokens_per_sequence)
    accepted = max(0, len(taken) - 1)
    if draft:
        guesser.judge(sequence, len(draft), len(outcome.new_tokens) - 1, accepted)
    # A stop token inside an accepted draft cuts the tokens, so the rows of those behind it are not kept.
    kept_rows = outcome.kept_rows - (len(outcome.new_tokens) - len(taken))
    path = grown.path if grown is not None else ()
    return SequenceUpdate(segment, taken, kept_rows, len(draft), accepted, path=path)


def plan_trees(
    spec: ForecastSpec | None,
    decodes: Iterable[Sequence],
    spare: int,
    past: int,
    capacity: Capacity,
    grow: Callable[[Sequence, int], bool],
) -> dict[str, ForecastTree]:
    """By id the tree of each sequence that gets one; they share the spare rows alike.
    spec: None where the model does not guess for itself. past: slots of the step; forecast rows see the prefix in the
    first of them.
    grow(sequence, tokens) gives a sequence slots for so many tokens. A grammar's masks are for one text, not for a tree
    of them: such sequences decode one row at a time."""
    if spec is None or past < spec.columns:
        return {}
    able = [sequence for sequence in decodes if sequence.request.params.grammar is None]
    trees: dict[str, ForecastTree] = {}
    for count, sequence in zip(range(len(able), 0, -1), able, strict=True):
        levels = max(0, room(sequence, capacity) - 1)
        tree = tree_of(spec, sequence.tokens[-1], sequence.forecasts[:levels], 1 + spare // count)
        if tree is not None and grow(sequence, sequence.computed + 1 + tree.depth):
            trees[sequence.id] = tree
            sequence.guesses.taken = GuessKind.FORECAST
            spare -= len(tree.tokens) - 1
    return trees
