"""How far one request has got, whether it fits, and where its answer ends."""

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b

from engine.core.block_diffusion import ActiveBlock
from engine.core.kv_blocks import BlockKey, block_keys, blocks_at_once
from engine.core.speculation import GuessRecord
from engine.request import FinishReason, PromptImage, Request, SamplingParams, TokenLogprob


@dataclass(frozen=True, slots=True)
class Capacity:
    """Limits of one sequence. `slots` of a pool hold cached tokens; the newest token needs none."""

    slots: int
    max_context: int

    @property
    def tokens_per_sequence(self) -> int:
        """Most tokens, prompt and completion together, of one sequence."""
        return min(self.max_context, self.slots + 1)

    @property
    def tokens_per_input(self) -> int:
        """Most tokens of a text of which only a vector is wanted: nothing comes behind it."""
        return min(self.max_context, self.slots)


def blocks_for(tokens: int, block_size: int) -> int:
    return -(-tokens // block_size)


Rank = tuple[bool, int, int]


class SequenceStatus(StrEnum):
    WAITING = "waiting"  # holds no slots
    PREFILL = "prefill"  # more still to compute than a decode does
    DECODE = "decode"  # one token to compute, the newest; of blocks: one that is denoised, or one to keep and the next
    FINISHED = "finished"


MOVES: dict[SequenceStatus, tuple[SequenceStatus, ...]] = {
    SequenceStatus.WAITING: (SequenceStatus.PREFILL, SequenceStatus.DECODE, SequenceStatus.FINISHED),
    SequenceStatus.PREFILL: (SequenceStatus.DECODE, SequenceStatus.WAITING, SequenceStatus.FINISHED),
    SequenceStatus.DECODE: (SequenceStatus.WAITING, SequenceStatus.FINISHED),
    SequenceStatus.FINISHED: (),
}


@dataclass(slots=True, eq=False)
class Sequence:
    """Progress of one request. The scheduler is its only writer; times are the loop's.
    tokens: prompt, tokens delivered by an earlier worker, then new ones. computed: tokens whose KV is in the pool, in
    slots blocks[i // 16] * 16 + i % 16. freed: its first blocks that no layer sees any more, which are given back;
    behind: those that layers with a window see no more. resumed: how many tokens an earlier worker delivered.
    active_block: what is denoised, None for one token after the other."""

    request: Request
    order: int
    seed: int
    tokens: list[int]
    status: SequenceStatus = SequenceStatus.WAITING
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    freed: int = 0
    behind: int = 0
    keys: list[BlockKey] = field(default_factory=list)
    registered: int = 0
    last_served: int = -1
    finish: FinishReason | None = None
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)  # of prompt tokens 1, 2, ...
    guesses: GuessRecord = field(default_factory=GuessRecord)
    forecasts: tuple[tuple[int, ...], ...] = ()  # by level, guesses behind the newest token
    # Facts for `RequestTimings`: seconds on the caller's clock, then counts.
    arrived_s: float = 0.0
    started_s: float | None = None
    first_token_s: float | None = None
    cached_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    steps: int = 0
    step_rows: int = 0
    resumed: int = 0
    active_block: ActiveBlock | None = None
    _distinct: "array[int] | None" = None
    _embeds_salt: bytes | None = None

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def is_finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    @property
    def distinct_prompt_tokens(self) -> "array[int]":
        """The distinct tokens of the prompt as int64; computed once, because a prompt may be long."""
        if self._distinct is None:
            self._distinct = array("q", sorted(set(() if self.request.prompt_embeds else self.request.prompt_ids)))
        return self._distinct

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt_ids)

    @property
    def generated(self) -> int:
        """Tokens of the completion so far, those of earlier workers included."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def block_length(self) -> int:
        """Rows that see each other both ways; it is computed in multiples of them."""
        return self.active_block.settings.block_length if self.active_block is not None else 1

    @property
    def _next_image(self) -> PromptImage | None:
        """That still has to be computed, of those whose rows see each other both ways."""
        images = self.request.images
        return next((image for image in images if image.both_ways and image.first >= self.computed), None)

    @property
    def whole_rows(self) -> int:
        """How many of the next rows see each other both ways and are computed in one step: a block, an image, or 1."""
        image = self._next_image
        return image.tokens if image is not None and image.first == self.computed else self.block_length

    @property
    def most_rows(self) -> int:
        """Most rows that a step may have of it: up to an image whose rows see each other both ways, or all of that."""
        image = self._next_image
        if image is None:
            return self.rows_wanted
        return image.tokens if image.first == self.computed else min(self.rows_wanted, image.first - self.computed)

    @property
    def is_pooled(self) -> bool:
        """Whether a vector is wanted of it: it never decodes, and gives way to whoever does."""
        return self.request.pooling is not None

    @property
    def decode_rows(self) -> int:
        """Most rows of it in a step that does not count as prefill."""
        return 0 if self.is_pooled else 1 if self.active_block is None else 2 * self.block_length

    @property
    def final_tokens(self) -> int:
        """Tokens whose keys and values can be computed for good: all, or those of whole blocks."""
        return len(self.tokens) - len(self.tokens) % self.block_length

    @property
    def rows_wanted(self) -> int:
        """Rows that still have to be computed before the next token is known, or the next block denoised once."""
        return self.final_tokens - self.computed + (self.block_length if self.active_block is not None else 0)

    @property
    def has_prompt_logprobs(self) -> bool:
        """Whether no log-probability of a prompt token is missing; an earlier worker sent them with its first token."""
        needs_them = self.request.params.prompt_logprobs is not None and not self.resumed
        return not needs_them or len(self.prompt_logprobs) == self.prompt_tokens - 1

    @property
    def first_logit_row(self) -> int:
        """Index of the first token whose row must be computed, because something is read from its logits."""
        if self.active_block is not None:
            return self.final_tokens
        return len(self.tokens) - 1 if self.has_prompt_logprobs else len(self.prompt_logprobs)

    @property
    def rank(self) -> Rank:
        """Order of service: what generates before what is pooled, then priority, then arrival.
        The greatest rank is the first to give its slots back."""
        return (self.is_pooled, self.request.priority, self.order)

    @property
    def prefix_salt(self) -> bytes:
        """Whose cached prefixes it may share. Embeddings have no ids: all of them together are a salt of their own."""
        request = self.request
        if self._embeds_salt is None and request.prompt_embeds:
            digest = blake2b(request.prompt_embeds, key=request.cache_salt, person=b"prompt_embeds", digest_size=32)
            self._embeds_salt = digest.digest()
        return self._embeds_salt or request.cache_salt

    def shareable_blocks(self, blocks: int, block_size: int) -> int:
        """Of its first `blocks` blocks, those that end where a block ends, and in no image that lies in one step."""
        blocks -= blocks % blocks_at_once(block_size, self.block_length)
        for image in reversed(self.request.images):
            if image.both_ways and image.first < blocks * block_size < image.first + image.tokens:
                blocks = image.first // block_size
        return blocks

    def extend_keys(self, tokens: int, block_size: int) -> None:
        """Compute the prefix keys of the full blocks among the first `tokens` tokens."""
        if len(self.keys) < tokens // block_size:
            known, salt, length = self.tokens[:tokens], self.prefix_salt, self.block_length if self.active_block else 0
            self.keys = block_keys(known, block_size, self.keys, salt, length, self.request.images)

    def usable_keys(self, block_size: int) -> list[BlockKey]:
        """Keys of the blocks that may be shared: rows whose logits are wanted, at least the last, are computed."""
        return self.keys[: self.shareable_blocks(self.first_logit_row // block_size, block_size)]

    def move(self, status: SequenceStatus) -> None:
        """Change status; anything the table does not list is our own mistake."""
        assert status in MOVES[self.status], f"{self.id}: {self.status} -> {status}"
        self.status = status


def append_tokens(sequence: Sequence, new_tokens: Iterable[int], limit: int) -> tuple[int, ...]:
    """Add tokens up to the one that ends the answer, and say in `sequence.finish` that it has; those that were added.
    limit: most tokens of a sequence."""
    params, before = sequence.request.params, len(sequence.tokens)
    for token in new_tokens:
        if not params.max_tokens:
            sequence.finish = FinishReason.LENGTH
            break
        sequence.tokens.append(token)
        sequence.finish = _end_of(params, token, sequence.generated, len(sequence.tokens) >= limit)
        if sequence.finish is not None:
            break
    return tuple(sequence.tokens[before:])


def ends_within(sequence: Sequence, new_tokens: Iterable[int], limit: int) -> bool:
    params, known = sequence.request.params, len(sequence.tokens)
    return any(
        not params.max_tokens or _end_of(params, token, sequence.generated + added, known + added >= limit) is not None
        for added, token in enumerate(new_tokens, 1)
    )


def _end_of(params: SamplingParams, token: int, generated: int, is_full: bool) -> FinishReason | None:
    """Why the answer ends with `token`, the last of so many; None when it goes on."""
    # Under a grammar the sampler takes a stop token before min_tokens only where there is no other.
    if token in params.stop_token_ids and (generated > params.min_tokens or params.grammar is not None):
        return FinishReason.STOP
    return FinishReason.LENGTH if generated >= params.max_tokens or is_full else None


class OutputLengthEstimate:
    """A first guess of an answer's tokens that slowly follows what answers had; 0 expects and learns nothing.
    held: most blocks that so many tokens take."""

    def __init__(self, first_guess: int, capacity: Capacity, held: Callable[[int], int]) -> None:
        self.tokens = float(first_guess)
        self._capacity = capacity
        self._held = held

    def observe(self, tokens: int) -> None:
        if self.tokens and tokens:
            self.tokens += 0.05 * (tokens - self.tokens)

    def growth(self, sequence: Sequence) -> int:
        """Blocks that a sequence is still expected to take, beyond those of its tokens."""
        rest, tokens = round(self.tokens) - sequence.generated, len(sequence.tokens)
        return self._held(tokens + max(1, min(rest, room(sequence, self._capacity))) - 1) - self._held(tokens)

    def reserved(self, newcomer: Sequence, running: Iterable[Sequence]) -> int:
        """Blocks to keep free when a sequence is admitted, at least one for each running one; 0 when none runs."""
        others = [max(1, self.growth(sequence)) for sequence in running if not sequence.is_pooled]
        return self.growth(newcomer) + sum(others) if others else 0


def room(sequence: Sequence, capacity: Capacity) -> int:
    left = sequence.request.params.max_tokens - sequence.generated
    return min(left, capacity.tokens_per_sequence - len(sequence.tokens))
