"""How far a draft model has read each sequence, and the pages that what it read lies in."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from engine.cache.pages import PagePool
from engine.cache.prefix import PageKey, page_keys, pages_at_once
from engine.request import Request


@dataclass(slots=True)
class Follower:
    """One sequence. tokens: those whose keys and values lie in `pages`, the draft's own guesses among them.

    confirmed: how many of them the sequence had when it was last seen; they never change. registered: full pages of
    them that others may share.
    """

    tokens: list[int] = field(default_factory=list)
    pages: list[int] = field(default_factory=list)
    keys: list[PageKey] = field(default_factory=list)
    confirmed: int = 0
    registered: int = 0
    last_used: int = 0  # step in which it was followed


class Followers:
    """Owns the pages of a draft model's cache. Every method leaves `PagePool` consistent.

    block_rows: rows of so many tokens see each other both ways: pages are shared up to the end of a block.
    """

    def __init__(self, pool: PagePool, block_rows: int = 1) -> None:
        self.pool = pool
        self._block_length = block_rows if block_rows > 1 else 0  # as `page_keys` has it
        self._followers: dict[str, Follower] = {}
        self._step = 0

    def __len__(self) -> int:
        return len(self._followers)

    def begin_step(self) -> None:
        """Who is followed from now on keeps its pages until the next step."""
        self._step += 1

    def unread(self, sequence_id: str, tokens: Sequence[int]) -> int:
        """How many of a sequence's tokens have yet to be read, as far as is known before it is followed."""
        follower = self._followers.get(sequence_id)
        return len(tokens) - (_in_common(follower, tokens) if follower else 0)

    def follow(self, request: Request, tokens: Sequence[int]) -> Follower:
        """The sequence as far as it was read, wrong guesses forgotten; a new one begins with pages that others read."""
        follower = self._followers.get(request.id)
        if follower is None or not follower.pages:  # meanwhile another one may have read the same beginning
            follower = self._followers[request.id] = self._begin(request, tokens)
        else:
            self._rewind(follower, _in_common(follower, tokens))
        follower.confirmed = len(follower.tokens)
        self._register(follower, request.cache_salt)
        follower.last_used = self._step
        return follower

    def grow(self, follower: Follower, tokens: int) -> bool:
        """Give it pages for `tokens` tokens; False if too few.

        If need be those of whoever was followed longest ago, but never in this step: all would take them by turns.
        """
        wanted = -(-tokens // self.pool.page_columns)
        if wanted > self.pool.page_count:
            return False
        missing = wanted - len(follower.pages)
        while missing > self.pool.available:
            others = [name for name, each in self._followers.items() if each.last_used < self._step and each.pages]
            if not others:
                return False
            self.forget(min(others, key=lambda name: self._followers[name].last_used))
        follower.pages.extend(self.pool.allocate(max(0, missing)) or ())
        return True

    def columns(self, follower: Follower, count: int) -> list[int]:
        """The columns of the next `count` tokens."""
        size, start = self.pool.page_columns, len(follower.tokens)
        return [follower.pages[at // size] * size + at % size for at in range(start, start + count)]

    def retain(self, sequence_ids: Collection[str]) -> None:
        """Forget every other sequence."""
        for name in [name for name in self._followers if name not in sequence_ids]:
            self.forget(name)

    def forget(self, sequence_id: str) -> None:
        """Give its pages back; those that are registered can be found again until they are needed."""
        follower = self._followers.pop(sequence_id, None)
        if follower is not None:
            self.pool.release(follower.pages)

    def _begin(self, request: Request, tokens: Sequence[int]) -> Follower:
        size = self.pool.page_columns
        full = tokens[: (len(tokens) - 1) // size * size]
        keys = page_keys(full, size, salt=request.cache_salt, block_length=self._block_length)
        pages = self.pool.lookup(keys)
        pages = pages[: len(pages) - len(pages) % pages_at_once(size, self._block_length)]
        self.pool.acquire(pages)
        count = len(pages)
        return Follower(list(tokens[: count * size]), list(pages), keys[:count], registered=count)

    def _rewind(self, follower: Follower, tokens: int) -> None:
        del follower.tokens[tokens:]
        pages = -(-tokens // self.pool.page_columns)
        self.pool.release(follower.pages[pages:])
        del follower.pages[pages:]

    def _register(self, follower: Follower, salt: bytes) -> None:
        size = self.pool.page_columns
        full = follower.confirmed // size
        if full > follower.registered:
            follower.keys = page_keys(follower.tokens[: full * size], size, follower.keys, salt, self._block_length)
            full = len(follower.keys)  # whole runs of pages that end with a block
            for page in range(follower.registered, full):
                self.pool.register(follower.pages[page], follower.keys[page])
            follower.registered = full


def _in_common(follower: Follower, tokens: Sequence[int]) -> int:
    """How many of the tokens that were read are the sequence's. Its last token is never one: its row gives logits."""
    most = min(len(follower.tokens), len(tokens) - 1)
    same = min(follower.confirmed, most)
    while same < most and follower.tokens[same] == tokens[same]:
        same += 1
    return same
