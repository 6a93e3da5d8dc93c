"""The text of one utterance while somebody speaks: what has been given is never taken back.

The window that goes on is written again and again; words that two texts in a row agree on are given, and every later
text begins with them. Only the first part of a window is written early, so that a window that is full can be cut at
the quietest place behind it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from engine.errors import Busy
from engine.request import TextLogprob
from engine.speech.alignment import TEMPERATURES
from engine.speech.live import LiveSound, Piece, Utterance, settled, text_of_pieces
from engine.speech.log_mel import SAMPLE_RATE
from server.generation.window_writer import Beginning, WindowWriter, Written
from server.http.errors import RequestTimeout

LONGEST_S = 30.0  # of a window: less than a session keeps of sound
EARLY_PART = 2 / 3  # of a window
DRAFTS = 30  # of one window at most: with Whisper's one a second
PATIENCE = 1.0  # the next early text waits for as many times as much sound as the last one took to write
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LiveDelta:
    """More of the text, and the log-probabilities of its tokens when they were first given."""

    text: str
    logprobs: tuple[TextLogprob, ...] = ()


class LiveTranscript:
    """Of one utterance; `deltas` may be iterated once."""

    def __init__(
        self, writer: WindowWriter, sound: LiveSound, utterance: Utterance, said: list[int], limit_s: float
    ) -> None:
        """said: tokens that came before. limit_s: longest time for a window that is complete; 0 = none."""
        self._writer, self._sound, self._utterance, self._said = writer, sound, utterance, said
        self._is_asked = bool(writer.language)  # which language it is, or told by a window
        self._window = round(min(writer.window_s, LONGEST_S) * SAMPLE_RATE)
        self._begun: tuple[Piece, ...] = ()  # given, of the window that goes on
        self._limit_s = limit_s
        self._has_text = False

    async def deltas(self) -> AsyncGenerator[LiveDelta, None]:
        """What can be given, until the utterance has ended and all of it is. Raises what the engine raises."""
        utterance = self._utterance
        while True:
            async for delta in self._drafts():
                yield delta
            end, full = utterance.end, utterance.needed + self._window
            last = end is not None and end <= full
            cut = end if last and end is not None else self._sound.quietest(self._early_end, full)
            delta = self._given(await self._final(cut))
            if delta.text:
                yield delta
            if last:
                return
            self._begun, self._is_asked = (), True
            utterance.needed = cut
            self._sound.changed()

    @property
    def _early_end(self) -> int:
        return self._utterance.needed + round(self._window * EARLY_PART)

    async def _drafts(self) -> AsyncGenerator[LiveDelta, None]:
        """What can be given before the utterance ends or the window is full."""
        utterance, sound, clock = self._utterance, self._sound, asyncio.get_running_loop().time
        full, early_end = utterance.needed + self._window, self._early_end
        step, heard = self._window // DRAFTS, utterance.needed
        before: tuple[Piece, ...] = ()

        def is_over() -> bool:
            return utterance.end is not None or sound.end >= full

        def has_more() -> bool:
            return is_over() or min(sound.end, early_end) - heard >= step

        while True:
            await sound.until(has_more)
            if is_over():
                return
            began, heard = clock(), min(sound.end, early_end)
            try:
                now = await self._unless_over(self._written(heard, (0.0,)), is_over)
            except Busy:
                continue
            if now is None:
                return
            if now.window.is_trusted and not now.window.is_silence:
                count = settled(before, now.pieces, self._writer.has_spaces)
                before = now.pieces
                if count > len(self._begun):
                    yield self._given(now, count)
            step = max(self._window // DRAFTS, round(PATIENCE * (clock() - began) * SAMPLE_RATE))

    async def _unless_over(self, work: Coroutine[Any, Any, T], is_over: Callable[[], bool]) -> T | None:
        """The result of some work; None when the utterance has ended before."""
        working = asyncio.create_task(work)
        ending = asyncio.create_task(self._sound.until(is_over))
        try:
            await asyncio.wait((working, ending), return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else None
        finally:
            for task in (working, ending):
                task.cancel()
            await asyncio.gather(working, ending, return_exceptions=True)

    async def _final(self, end: int) -> Written | None:
        """Of the window up to its end; None where nobody has said any more."""
        if end <= self._utterance.needed:
            return None
        try:
            async with asyncio.timeout(self._limit_s or None):
                made = await self._written(end, TEMPERATURES)
        except TimeoutError:
            raise RequestTimeout.after(self._limit_s) from None
        return None if made.window.is_silence else made

    async def _written(self, end: int, temperatures: tuple[float, ...]) -> Written:
        if not self._begun and not self._is_asked:
            self._writer.language = ""  # more sound tells better
        beginning = Beginning(self._said, self._begun, has_times=False)
        return await self._writer.write(self._sound.cut(self._utterance.needed, end), beginning, temperatures)

    def _given(self, made: Written | None, count: int | None = None) -> LiveDelta:
        """The text behind what was given of a window, up to so many tokens."""
        if made is None:
            return LiveDelta("")
        pieces = made.pieces[:count]
        fresh, scores = pieces[len(self._begun) :], made.logprobs[: len(pieces) - len(self._begun)]
        self._begun = pieces
        text = text_of_pieces(fresh)
        if count is None:
            text = text.rstrip()
        if not self._has_text:
            text = text.lstrip()
        self._has_text = self._has_text or bool(text)
        return LiveDelta(text, scores)
