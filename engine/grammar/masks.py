"""The worker's side: one matcher per sequence with a grammar, and the tokens it forbids next.

Masks are computed in threads (llguidance lets go of the GIL) while the next pass runs. Nobody waits for one: a row
whose mask is not there yet is not sampled, and its sequence is left out of passes until the mask is there.
Building a matcher has threads of its own, so that a large grammar delays no other sequence's masks.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TypeVar

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from engine.grammar.matching import GrammarFailed, checked, new_matcher

T = TypeVar("T")
Forbidden = NDArray[np.bool_]  # [V], true where a token may not be chosen

BUILD_THREADS = 4
MASK_THREADS = 4
KEPT_GRAMMARS = 32


@dataclass(frozen=True, slots=True)
class Masks:
    """What is forbidden for the next token, then for the token behind each guess; None behind a guess that is."""

    matcher: LLMatcher
    forbidden: tuple[Forbidden | None, ...]


@dataclass(slots=True)
class _Line:
    """One sequence. `is_late`: its mask was missing when it was wanted, or its matcher is still being built."""

    work: "Future[Masks]"
    is_late: bool = True


class GrammarMasks:
    """Owned by the engine's loop; every method is called from its thread.

    make_tokenizer is called once, in a thread, when the first grammar comes. Executors are given by tests only.
    """

    def __init__(
        self, make_tokenizer: Callable[[], LLTokenizer], builds: Executor | None = None, steps: Executor | None = None
    ) -> None:
        self._make_tokenizer = make_tokenizer
        self._tokenizer: LLTokenizer | None = None
        self._tokenizer_lock = Lock()
        self._builds = builds or ThreadPoolExecutor(BUILD_THREADS, thread_name_prefix="grammar-build")
        self._steps = steps or ThreadPoolExecutor(MASK_THREADS, thread_name_prefix="grammar-mask")
        self._bases: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._lines: dict[str, _Line] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Sequences with a grammar."""
        return tuple(self._lines)

    def open(self, name: str, grammar: str, emitted: Sequence[int]) -> None:
        """Begin a sequence; `emitted` are tokens of its completion that are there already."""
        work: Future[Masks] = Future()
        self._lines[name] = _Line(work)
        begin = partial(_begin, tuple(emitted))
        self._base(grammar).add_done_callback(
            lambda base: self._steps.submit(_settle, work, lambda: begin(base.result()))
        )

    def late(self) -> frozenset[str]:
        """Sequences that cannot be sampled now."""
        for line in self._lines.values():
            line.is_late = line.is_late and not line.work.done()
        return frozenset(name for name, line in self._lines.items() if line.is_late)

    def guess(self, name: str, guesses: tuple[int, ...]) -> None:
        """Prepare masks behind guesses as well."""
        line = self._lines[name]
        line.work = self._steps.submit(_behind, line.work, guesses)

    def take(self, name: str) -> tuple[Forbidden | None, ...] | None:
        """The masks of a sequence's rows; None when they are not there yet. GrammarFailed when there will be none."""
        line = self._lines[name]
        if not line.work.done():
            line.is_late = True
            return None
        error = line.work.exception()
        if error is not None:
            raise GrammarFailed(str(error)) from error
        return line.work.result().forbidden

    def is_ready(self, name: str) -> bool:
        """Whether `take` would give masks or fail."""
        return self._lines[name].work.done()

    def advance(self, name: str, tokens: tuple[int, ...]) -> None:
        """The tokens that were chosen from the masks taken."""
        line = self._lines[name]
        line.work = self._steps.submit(_advanced, line.work.result().matcher, tokens)

    def forget(self, name: str) -> None:
        """The sequence is gone; names without a grammar are ignored."""
        self._lines.pop(name, None)

    def wait(self, timeout_s: float) -> None:
        """Wait until the masks of at least one sequence are there."""
        pending = [line.work for line in self._lines.values() if not line.work.done()]
        if pending:
            wait(pending, timeout_s, FIRST_COMPLETED)

    def close(self) -> None:
        """Let the threads end."""
        self._builds.shutdown(wait=False, cancel_futures=True)
        self._steps.shutdown(wait=False, cancel_futures=True)

    def _base(self, grammar: str) -> "Future[LLMatcher]":
        """A matcher at the beginning, to copy: choices of one request and repeated schemas are built once."""
        base = self._bases.get(grammar)
        if base is None:
            base = self._bases[grammar] = self._builds.submit(self._build, grammar)
            if len(self._bases) > KEPT_GRAMMARS:
                self._bases.popitem(last=False)
        self._bases.move_to_end(grammar)
        return base

    def _build(self, grammar: str) -> LLMatcher:
        with self._tokenizer_lock:
            if self._tokenizer is None:
                self._tokenizer = self._make_tokenizer()
        return new_matcher(self._tokenizer, grammar)


def _settle(work: "Future[T]", make: Callable[[], T]) -> None:
    """Run `make` into a future; whatever it raises is the sequence's own failure."""
    try:
        work.set_result(make())
    except BaseException as error:  # noqa: BLE001 (handed on to `take`; a panic of llguidance is no Exception)
        work.set_exception(error)


def _begin(emitted: tuple[int, ...], base: LLMatcher) -> Masks:
    return _advanced(base.deep_copy(), emitted)


def _advanced(matcher: LLMatcher, tokens: tuple[int, ...]) -> Masks:
    if tokens and not matcher.consume_tokens(list(tokens)):
        checked(matcher)
        raise GrammarFailed("the grammar does not allow the text so far")
    return Masks(matcher, (_forbidden(matcher),))


def _behind(before: "Future[Masks]", guesses: tuple[int, ...]) -> Masks:
    """Walk along the guesses as far as the grammar goes with them, and back."""
    ready = before.result()
    matcher, forbidden = ready.matcher, [ready.forbidden[0]]
    taken = 0
    for token in guesses:
        last = forbidden[-1]
        if last is None or last[token] or matcher.is_stopped() or not matcher.consume_token(token):
            forbidden.append(None)
        else:
            taken += 1
            forbidden.append(_forbidden(matcher))
    if taken and not matcher.rollback(taken):
        raise GrammarFailed("the grammar cannot be wound back")
    checked(matcher)
    return Masks(matcher, tuple(forbidden))


def _forbidden(matcher: LLMatcher) -> Forbidden:
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    checked(matcher)
    forbidden: Forbidden = np.unpackbits(bits, bitorder="little") == 0
    return forbidden
