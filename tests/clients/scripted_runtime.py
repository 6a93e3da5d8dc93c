"""A runtime that obeys: the KV of a column is its token id, so a row can read everything it may see.

Its logits put the next token of what it would say (`scripted_answers.py`) first. Where a grammar forbids all of that
the next best is the token that ends things soonest, so that greedy choice runs to a short instance of any grammar.
"""

import random
import re
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.variant import ShapeTable
from engine.config import EngineConfig
from engine.runtime.interface import BlockStore, Logits, PackedBatch, Runtime
from engine.text.tokenizer import Tokenizer
from tests.call_formats import HERMES
from tests.clients.scripted_answers import turn_of, wishes
from tests.engine.fake_runtime import visible

GAP = 64.0  # between neighbours: no temperature jumps over it, a bias of -100 does
WISH = 1e6
PATIENCE_BYTES = 400  # of text nobody wished for; then the order of preference changes with every token
THOUGHT = b"<think>\nThe user said something.\n</think>\n\n"
PLAIN = b" ok"  # what it says behind a plain prompt
MOST_REPEATS = 3
# How soon a token ends a JSON text, outside and inside of its strings: patterns of tokens, the soonest first.
OUTSIDE = ("[}\\]]+", '"', "[}\\]].*", "[:,].*", "[0-9]+", "[A-Za-z]+", "[\\[{].*", r"\S.*", ".+")
INSIDE = ('"', '"[}\\]]*', '".*', "@", r"\.", "[A-Za-z]+", "[0-9]+", "[:/]", r"\S.*", ".+")


class ScriptedRuntime(Runtime, BlockStore):
    """Keeps token ids where a real runtime keeps keys and values; needs no graphs."""

    def __init__(self, folder: Path, manifest: Manifest, shapes: ShapeTable, config: EngineConfig) -> None:
        super().__init__(shapes, "scripted")
        self.blocks = self
        # A column holds position << 32 | token id, -1 when it was never written.
        self._places = np.full(shapes.max_past, -1, np.int64)
        self._fresh: NDArray[np.int64] = np.empty(0, np.int64)
        self._host_cache: dict[bytes, NDArray[np.int64]] = {}
        self._mind = Mind(Tokenizer.load(folder, manifest.text), manifest)

    def run(self, batch: PackedBatch) -> Logits:
        """Logits [R, vocab]."""
        self._fresh = batch.positions.astype(np.int64) << 32 | batch.input_ids
        past = self._places[: batch.shape.past]
        everything = np.concatenate([past, self._fresh])
        found = np.empty((len(batch.logit_rows), self._mind.vocabulary), np.float32)
        for index, row in enumerate(batch.logit_rows):
            seen = np.sort(everything[visible(batch)[row]])
            found[index] = self._mind.logits(tuple((seen[seen >= 0] & 0xFFFFFFFF).tolist()))
        return Logits.of(found)

    def non_finite_rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """None."""
        return np.empty(0, np.int64)

    def keep(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> None:
        """Remember the tokens of `rows`."""
        self._places[columns] = self._fresh[rows]

    def offload(self, columns: slice, key: bytes) -> None:
        """Remember a page."""
        self._host_cache[key] = self._places[columns].copy()

    def load(self, columns: slice, key: bytes) -> None:
        """Put a page back."""
        self._places[columns] = self._host_cache[key]

    def evict(self, key: bytes) -> None:
        """Forget a page."""
        self._host_cache.pop(key, None)

    def close(self) -> None:
        """Nothing to release."""


class Mind:
    """From the tokens seen to logits."""

    def __init__(self, tokenizer: Tokenizer, manifest: Manifest) -> None:
        self.vocabulary = manifest.model.vocab
        self._tokenizer = tokenizer
        self._format = manifest.text.writes.calls or HERMES
        self._thinks = manifest.text.writes.reasoning is not None
        self._ends = list(manifest.text.stop_ids)
        self._turn_start = tokenizer.special_tokens["<|im_start|>"]
        pieces = [tokenizer.token_bytes(token) for token in range(self.vocabulary)]
        self._ids = {piece: token for token, piece in reversed(list(enumerate(pieces))) if piece}
        self._longest = max(map(len, pieces))
        self._outside = self._preference(pieces, OUTSIDE)
        self._inside = self._preference(pieces, INSIDE)
        self._wishes = lru_cache(256)(self._wishes_of)

    def logits(self, tokens: tuple[int, ...]) -> NDArray[np.float32]:
        """Logits [vocab] of the token after these."""
        start = next((place for place in reversed(range(len(tokens))) if tokens[place] == self._turn_start), 0)
        head, _, said = b"".join(map(self._tokenizer.token_bytes, tokens[start:])).partition(b"\n")
        wished = self._wishes(tokens[:start])
        if not head.startswith(b"<|im_start|>"):  # a plain prompt: where it ends is not known
            wished, said = (PLAIN,), begun(PLAIN, b"".join(map(self._tokenizer.token_bytes, tokens[-len(PLAIN) :])))
        elif self._thinks:
            _, closing, answer = said.partition(b"</think>")
            if closing:
                said = answer.lstrip(b"\n")
            elif THOUGHT.startswith(said):  # a grammar may leave no room for it
                wished = (THOUGHT, *wished)
        is_inside = is_in_string(said)
        found = (self._inside if is_inside else self._outside).copy()
        if len(said) > PATIENCE_BYTES:
            self._shuffle(found, len(tokens))
        if len(set(tokens[-MOST_REPEATS:])) == 1 and len(said) > MOST_REPEATS:
            found[tokens[-1]] -= GAP * len(found)
        spent = [self._ids[sign] for sign in (b"@", b".") if is_inside and sign in said.rpartition(b'"')[2]]
        found[spent] -= GAP * len(found)  # once in a string is enough: an address must not go on for ever
        for rank, wish in enumerate(wished):
            self._favour(found, wish, said, WISH * (1 - rank / 100))
        return found

    def _favour(self, found: NDArray[np.float32], wish: bytes, said: bytes, bonus: float) -> None:
        """The tokens that go on with a wish, longer ones first; the end when all is said."""
        if wish == said:
            found[self._ends] = np.maximum(found[self._ends], bonus)
            return
        if not wish.startswith(said):
            return
        rest = wish[len(said) : len(said) + self._longest]
        for length in range(1, len(rest) + 1):
            token = self._ids.get(rest[:length])
            if token is not None:
                found[token] = max(found[token], bonus + GAP * length)

    def _wishes_of(self, tokens: tuple[int, ...]) -> tuple[bytes, ...]:
        turns: list[list[int]] = []
        for token in tokens:
            if token == self._turn_start:
                turns.append([])
            elif turns and token not in self._ends:
                turns[-1].append(token)
        read = [turn_of(self._tokenizer.decode(tuple(turn), skip_special=False).rstrip("\n")) for turn in turns]
        return tuple(wish.encode() for wish in wishes(read, self._format))

    def _preference(self, pieces: list[bytes], kinds: tuple[str, ...]) -> NDArray[np.float32]:
        order = sorted(
            range(len(pieces)), key=lambda token: (rank_of(pieces[token], kinds), len(pieces[token]), pieces[token])
        )
        found = np.empty(len(pieces), np.float32)
        found[order] = -GAP * np.arange(1, len(pieces) + 1)
        found[self._ends] = 0.0
        return found

    def _shuffle(self, found: NDArray[np.float32], seed: int) -> None:
        """No grammar may keep us for ever: what closes stays first, the rest is in a new order for each token."""
        rest = np.flatnonzero(found < -GAP * 64)
        found[rest] = found[np.array(random.Random(seed).sample(rest.tolist(), len(rest)))]


def rank_of(piece: bytes, kinds: tuple[str, ...]) -> int:
    """Place of the first pattern that the whole token has; those of no text come last."""
    text = piece.decode("utf-8", "replace")
    return next((rank for rank, kind in enumerate(kinds) if re.fullmatch(kind, text, re.DOTALL)), len(kinds))


def begun(wish: bytes, text: bytes) -> bytes:
    """The beginning of a wish that a text ends with."""
    return next(wish[:length] for length in range(len(wish), -1, -1) if text.endswith(wish[:length]))


def is_in_string(said: bytes) -> bool:
    """Whether a quote is open."""
    is_open = is_escaped = False
    for byte in said:
        if is_escaped:
            is_escaped = False
        elif byte == 0x5C:
            is_escaped = is_open
        elif byte == 0x22:
            is_open = not is_open
    return is_open
