"""The worker's side: one matcher per sequence with a grammar, and the tokens it forbids next. Masks are computed in
threads (llguidance lets go of the GIL) while the next step runs. No step waits for one: a row whose mask is not there
yet is not sampled, and its sequence is left out of steps until the mask is there. Building a matcher has threads of its
own, so that a large grammar delays no other sequence's masks."""

import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TypeVar

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from engine.files import TOKENIZER_BYTES, read_text

# Fuel is llguidance's own unit of work. Speeds it states: 50k/ms for the initial one, 14k/ms and 20k/ms for a step.
INITIAL_FUEL = 20_000_000
STEP_FUEL = 200_000
STEP_ITEMS = 50_000
ROW_ITEMS = 2_000
LEXER_STATES = 100_000  # 1 to 2 kB each
GRAMMAR_SYMBOLS = 500_000
MESSAGE_CHARACTERS = 300


class GrammarFailed(Exception):
    """llguidance cannot go on with a grammar; the message says why."""


def load_tokenizer(file: Path, vocab: int, end_ids: Sequence[int]) -> LLTokenizer:
    """llguidance's view of a tokenizer.json; GrammarFailed when it cannot read it. Takes seconds for 150k tokens."""
    try:
        return LLTokenizer(read_text(file, TOKENIZER_BYTES), n_vocab=vocab, eos_token=list(end_ids))
    except (ValueError, OSError) as error:
        raise GrammarFailed(f"structured output is not possible with this model's tokenizer: {error}") from None


def new_matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """A matcher at the beginning; GrammarFailed when llguidance refuses the grammar."""
    limits = LLParserLimits(
        max_items_in_row=ROW_ITEMS,
        initial_lexer_fuel=INITIAL_FUEL,
        step_lexer_fuel=STEP_FUEL,
        step_max_items=STEP_ITEMS,
        max_lexer_states=LEXER_STATES,
        max_grammar_size=GRAMMAR_SYMBOLS,
        verbose_errors=False,
    )
    return checked(LLMatcher(tokenizer, grammar, log_level=0, limits=limits))


def checked(matcher: LLMatcher) -> LLMatcher:
    """The matcher itself; GrammarFailed when it is in its error state."""
    if matcher.is_error():
        raise GrammarFailed(_told(matcher.get_error()))
    return matcher


def _told(error: str) -> str:
    """What llguidance says, without the text of a grammar, places and options that the caller did not write."""
    said = re.split(r"\n *\d+ \|", error)[0].replace("<non-verbose/>", "")
    said = re.sub(r"at \d+\(\d+\): failed to compile JSON schema: ", "", said)
    said = said.replace("Enable 'coerce_one_of' option to approximate oneOf with anyOf", "Use anyOf.")
    if "NoExtensionBias" in said:  # its name for a grammar that lets nothing be said
        return "no text satisfies it"
    return " ".join(said.split())[:MESSAGE_CHARACTERS]


def control_tokens(tokenizer: LLTokenizer) -> dict[str, int]:
    """What llguidance takes for control tokens, by their texts, which no text of a grammar can match."""
    ids = (token for token in range(tokenizer.vocab_size) if tokenizer.is_special_token(token))
    return {text: token for token in ids if len(text := str(tokenizer.decode_str([token]))) > 1}


T = TypeVar("T")
Forbidden = NDArray[np.bool_]  # [V], true where a token may not be sampled

BUILD_THREADS = 4
MASK_THREADS = 4
KEPT_GRAMMARS = 32


@dataclass(frozen=True, slots=True)
class ReadyMasks:
    """Computed masks."""

    matcher: LLMatcher  # has consumed every token before the next one
    forbidden: tuple[Forbidden | None, ...]  # for the next token, then behind each guess; None behind a forbidden one


@dataclass(slots=True)
class _SequenceMasks:
    """One sequence's masks. is_late: missing when a step needed them, or the matcher is still being built."""

    work: "Future[ReadyMasks]"
    is_late: bool = True


class GrammarMasks:
    """Owned by the engine's loop; every method is called from its thread. make_tokenizer is called once, in a thread,
    when the first grammar comes. Executors are given by tests only."""

    def __init__(
        self, make_tokenizer: Callable[[], LLTokenizer], builds: Executor | None = None, steps: Executor | None = None
    ) -> None:
        self._make_tokenizer = make_tokenizer
        self._tokenizer: LLTokenizer | None = None
        self._tokenizer_lock = Lock()
        self._builds = builds or ThreadPoolExecutor(BUILD_THREADS, thread_name_prefix="grammar-build")
        self._steps = steps or ThreadPoolExecutor(MASK_THREADS, thread_name_prefix="grammar-mask")
        self._bases: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._sequences: dict[str, _SequenceMasks] = {}

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._sequences)

    def __contains__(self, sequence_id: str) -> bool:
        return sequence_id in self._sequences

    def open(self, sequence_id: str, grammar: str, emitted: Sequence[int]) -> None:
        """Begin a sequence; `emitted` are tokens of its completion that are there already."""
        work: Future[ReadyMasks] = Future()
        self._sequences[sequence_id] = _SequenceMasks(work)
        tokens = tuple(emitted)
        self._base(grammar).add_done_callback(
            lambda base: self._steps.submit(_settle, work, lambda: _advanced(base.result().deep_copy(), tokens))
        )

    def late(self) -> frozenset[str]:
        for entry in self._sequences.values():
            entry.is_late = entry.is_late and not entry.work.done()
        return frozenset(sequence_id for sequence_id, entry in self._sequences.items() if entry.is_late)

    def guess(self, sequence_id: str, guesses: tuple[int, ...]) -> None:
        """Compute the masks behind these guesses as well."""
        entry = self._sequences[sequence_id]
        entry.work = self._steps.submit(_behind, entry.work, guesses)

    def take(self, sequence_id: str) -> tuple[Forbidden | None, ...] | None:
        """A mask [V] for each sampled row, true = forbidden; None when not computed yet. GrammarFailed when never."""
        entry = self._sequences[sequence_id]
        if not entry.work.done():
            entry.is_late = True
            return None
        error = entry.work.exception()
        if error is not None:
            raise GrammarFailed(str(error)) from error
        return entry.work.result().forbidden

    def is_ready(self, sequence_id: str) -> bool:
        return self._sequences[sequence_id].work.done()

    def advance(self, sequence_id: str, tokens: tuple[int, ...]) -> None:
        """Take in the tokens that were sampled under the masks taken; the next mask is computed from now on."""
        entry = self._sequences[sequence_id]
        entry.work = self._steps.submit(_advanced, entry.work.result().matcher, tokens)

    def forget(self, sequence_id: str) -> None:
        """The sequence is gone; ids without a grammar are ignored."""
        self._sequences.pop(sequence_id, None)

    def wait(self, timeout_s: float) -> None:
        pending = [entry.work for entry in self._sequences.values() if not entry.work.done()]
        if pending:
            wait(pending, timeout_s, FIRST_COMPLETED)

    def close(self) -> None:
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


def _advanced(matcher: LLMatcher, tokens: tuple[int, ...]) -> ReadyMasks:
    if tokens and not matcher.consume_tokens(list(tokens)):
        checked(matcher)
        raise GrammarFailed("the grammar does not allow the text so far")
    return ReadyMasks(matcher, (_forbidden(matcher),))


def _behind(before: "Future[ReadyMasks]", guesses: tuple[int, ...]) -> ReadyMasks:
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
    return ReadyMasks(matcher, tuple(forbidden))


def _forbidden(matcher: LLMatcher) -> Forbidden:
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    checked(matcher)
    forbidden: Forbidden = np.unpackbits(bits, bitorder="little") == 0
    return forbidden
