"""How far one request has got."""

from array import array
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b

from engine.cache.prefix import PageKey, page_keys, pages_at_once
from engine.modes.block_diffusion import ActiveBlock
from engine.request import FinishReason, Request, TokenLogprob
from engine.speculation.acceptance import GuessRecord

Rank = tuple[bool, int, int]


class SequenceStatus(StrEnum):
    """Where a sequence stands."""

    WAITING = "waiting"  # holds no columns
    PREFILL = "prefill"  # more still to compute than a decode does
    DECODE = "decode"  # one token to compute, the newest; of blocks: one that is denoised, or one to keep and the next
    FINISHED = "finished"


MOVES: dict[SequenceStatus, frozenset[SequenceStatus]] = {
    SequenceStatus.WAITING: frozenset({SequenceStatus.PREFILL, SequenceStatus.DECODE, SequenceStatus.FINISHED}),
    SequenceStatus.PREFILL: frozenset({SequenceStatus.DECODE, SequenceStatus.WAITING, SequenceStatus.FINISHED}),
    SequenceStatus.DECODE: frozenset({SequenceStatus.WAITING, SequenceStatus.FINISHED}),
    SequenceStatus.FINISHED: frozenset(),
}


@dataclass(slots=True, eq=False)
class Sequence:
    """Progress of one request. The scheduler is its only writer; times and `prompt_logprobs` are the loop's.

    tokens: prompt, tokens delivered by an earlier worker, then new ones. computed: tokens whose KV is in the pool,
    in columns pages[i // 16] * 16 + i % 16. resumed: how many tokens an earlier
    worker delivered. block: what is denoised, None for one token after the other.
    """

    request: Request
    order: int
    seed: int
    tokens: list[int]
    status: SequenceStatus = SequenceStatus.WAITING
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    pool: int = 0
    keys: list[PageKey] = field(default_factory=list)
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
    passes: int = 0
    pass_rows: int = 0
    resumed: int = 0
    block: ActiveBlock | None = None
    _distinct: "array[int] | None" = None
    _embeds_salt: bytes | None = None

    @property
    def id(self) -> str:
        """The id of its request."""
        return self.request.id

    @property
    def is_finished(self) -> bool:
        """Whether it has ended, however it did; it holds no pages and is in no queue."""
        return self.status is SequenceStatus.FINISHED

    @property
    def distinct_prompt_tokens(self) -> "array[int]":
        """The distinct tokens of the prompt as int64; computed once, because a prompt may be long."""
        if self._distinct is None:
            tokens = () if self.request.prompt_embeds else self.request.prompt_ids
            self._distinct = array("q", sorted(set(tokens)))
        return self._distinct

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt_ids)

    @property
    def generated(self) -> int:
        """Tokens of the completion so far, those of earlier workers included."""
        return len(self.tokens) - self.prompt_tokens

    @property
    def block_length(self) -> int:
        """Rows that see each other both ways; it is computed in multiples of them."""
        return self.block.settings.block_length if self.block is not None else 1

    @property
    def is_pooled(self) -> bool:
        """Whether a vector is wanted of it: it never decodes, and gives way to whoever does."""
        return self.request.pooling is not None

    @property
    def decode_rows(self) -> int:
        """Most rows of it in a pass that does not count as prefill."""
        if self.is_pooled:
            return 0
        return 2 * self.block_length if self.block is not None else 1

    @property
    def settled_tokens(self) -> int:
        """Tokens whose keys and values can be computed for good: all, or those of whole blocks."""
        return len(self.tokens) - len(self.tokens) % self.block_length

    @property
    def rows_wanted(self) -> int:
        """Rows that still have to be computed before the next token is known, or the next block denoised once."""
        return self.settled_tokens - self.computed + (self.block_length if self.block is not None else 0)

    @property
    def has_prompt_logprobs(self) -> bool:
        """Whether no log-probability of a prompt token is missing; an earlier worker sent them with its first token."""
        needs_them = self.request.params.prompt_logprobs is not None and not self.resumed
        return not needs_them or len(self.prompt_logprobs) == self.prompt_tokens - 1

    @property
    def first_logit_row(self) -> int:
        """Index of the first token whose row must be computed, because something is read from its logits."""
        if self.block is not None:
            return self.settled_tokens
        return len(self.tokens) - 1 if self.has_prompt_logprobs else len(self.prompt_logprobs)

    @property
    def rank(self) -> Rank:
        """Order of service: what generates before what is pooled, then priority, then arrival.

        The greatest rank is the first to give its columns back.
        """
        return (self.is_pooled, self.request.priority, self.order)

    @property
    def prefix_salt(self) -> bytes:
        """Whose cached prefixes it may share. Embeddings have no ids: all of them together are a salt of their own."""
        request = self.request
        if self._embeds_salt is None and request.prompt_embeds:
            digest = blake2b(request.prompt_embeds, key=request.cache_salt, person=b"prompt_embeds", digest_size=32)
            self._embeds_salt = digest.digest()
        return self._embeds_salt or request.cache_salt

    def shareable_pages(self, pages: int, page_columns: int) -> int:
        """Of its first `pages` pages, those that end where a block ends."""
        return pages - pages % pages_at_once(page_columns, self.block_length)

    def extend_keys(self, tokens: int, page_columns: int) -> None:
        """Compute the prefix keys of the full pages among the first `tokens` tokens."""
        if len(self.keys) < tokens // page_columns:
            self.keys = page_keys(
                self.tokens[:tokens],
                page_columns,
                self.keys,
                self.prefix_salt,
                self.block_length if self.block is not None else 0,
            )

    def usable_keys(self, page_columns: int) -> list[PageKey]:
        """Keys of the pages that may be shared: rows whose logits are wanted, at least the last, are computed."""
        return self.keys[: self.shareable_pages(self.first_logit_row // page_columns, page_columns)]

    def move(self, status: SequenceStatus) -> None:
        """Change status; anything the table does not list is our own mistake."""
        assert status in MOVES[self.status], f"{self.id}: {self.status} -> {status}"
        self.status = status
