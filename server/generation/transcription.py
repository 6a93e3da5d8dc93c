"""A recording becomes segments of text: which windows are written, again at which temperature, and what follows."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, replace

from engine.bundle.specs import SpeechSpec
from engine.errors import HexserveError
from engine.request import Pooling, TextLogprob
from engine.speech import alignment
from engine.speech.alignment import TEMPERATURES, WindowText, Word
from engine.speech.live import Float32, Recording, Span, VoiceActivity, windows
from server.generation.answers import Envelope
from server.generation.launch import Service
from server.generation.window_writer import Beginning, WindowWriter, Written
from server.http.errors import RequestTimeout

WINDOWS_AT_ONCE = 16  # of one recording
LEAST_S = 0.1  # nobody says a word in less


@dataclass(frozen=True, slots=True)
class SpeechOptions:
    """What is asked for. language: "" = it is detected, among these. temperature: None = as low as can be trusted.
    activity: where somebody speaks decides where windows begin, and all of them are written at once; None = each
    begins where the one before has ended, and knows its text. has_words: with the times of words."""

    translates: bool
    language: str
    prompt: str
    temperature: float | None
    activity: VoiceActivity | None
    has_words: bool = False
    among: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Spoken:
    """Times in seconds of the recording. window: what the model wrote, of which these tokens are a part.
    written: the tokens with their times. words: those that begin in it, if asked for."""

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    written: tuple[int, ...]
    seek: float
    window: WindowText
    logprobs: tuple[TextLogprob, ...] = ()
    words: tuple[Word, ...] = ()


class TranscriptionRun:
    """One request. `segments` gives what was said in order; every exit path ends with `abort`, repeatable."""

    def __init__(self, service: Service, envelope: Envelope, recording: Recording, options: SpeechOptions) -> None:
        spec = service.engine.info.manifest.speech
        assert spec is not None, "the route has asked"
        self.recording = recording
        self._service = service
        self._spec: SpeechSpec = spec
        self._options = options
        self._temperatures = TEMPERATURES if options.temperature is None else (options.temperature,)
        self.writer = WindowWriter(service.engine, envelope.id, options.language, options.translates, options.among)
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        service.server.in_flight.check_open()
        service.server.in_flight.enter(self)

    def fail(self, error: HexserveError) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    def abort(self) -> None:
        self._service.server.in_flight.leave(self)
        self._failed.cancel()

    async def segments(self) -> AsyncIterator[Spoken]:
        """What is said, in order. Raises what the engine raises, RequestTimeout, and what `fail` is told."""
        pieces = self._apart() if self._options.activity is not None else self._in_turn()
        limit_s = self._service.settings.request_timeout_s
        end_s = asyncio.get_running_loop().time() + limit_s if limit_s else None
        try:
            while (found := await self._next(pieces, end_s)) is not None:
                for segment in found:
                    yield segment
        finally:
            await pieces.aclose()

    async def _next(self, pieces: AsyncIterator[list[Spoken]], end_s: float | None) -> list[Spoken] | None:
        step = asyncio.ensure_future(anext(pieces, None))
        left_s = None if end_s is None else max(0.0, end_s - asyncio.get_running_loop().time())
        try:
            await asyncio.wait((step, self._failed), timeout=left_s, return_when="FIRST_COMPLETED")
            if self._failed.done():
                self._failed.result()
            if not step.done():
                raise RequestTimeout.after(self._service.settings.request_timeout_s)
            return step.result()
        finally:
            if not step.done():
                step.cancel()
                await asyncio.gather(step, return_exceptions=True)

    async def _in_turn(self) -> AsyncGenerator[list[Spoken], None]:
        """Window after window; each knows the text before it."""
        first, start = await self.writer.ids(self._options.prompt), 0.0
        said: list[int] = list(first)
        while self.recording.seconds - start > LEAST_S:
            end = min(start + self.writer.window_s, self.recording.seconds)
            written = await self._write(self.recording.cut(start, end), said)
            found, advance = await self._segments(written, start, end - start)
            yield found
            for segment in found:
                said += segment.written  # with times: the next window would lose its own
            if written.window.temperature > alignment.FREE_TEMPERATURE or not written.window.is_trusted:
                said = []
            start += advance

    async def _apart(self) -> AsyncGenerator[list[Spoken], None]:
        """Windows of speech, many at once; they are given in order."""
        activity = self._options.activity
        assert activity is not None
        spans = windows(self.recording, activity, self.writer.window_s)
        said = await self.writer.ids(self._options.prompt)
        if spans and not self.writer.language:
            await self.writer.detect_language_of(self.recording.cut(*spans[0]))
        places = asyncio.Semaphore(WINDOWS_AT_ONCE)

        async def written(span: Span) -> list[Spoken]:
            async with places:
                made = await self._write(self.recording.cut(*span), said)
            found, _ = await self._segments(made, span[0], span[1] - span[0])
            return found

        tasks = [asyncio.create_task(written(span)) for span in spans]
        try:
            for task in tasks:
                yield await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, samples: Float32, said: Sequence[int]) -> Written:
        return await self.writer.write(samples, Beginning(said), self._temperatures)

    async def _segments(self, written: Written, start: float, length: float) -> tuple[list[Spoken], float]:
        """The segments of a window at its place in the recording, and how far the next one begins behind it."""
        window, engine = written.window, self._service.engine
        if window.is_silence:
            return [], length
        found, advance = alignment.segments(window.tokens, self._spec.first_time, length)
        pairs = zip(window.tokens, written.logprobs, strict=False)
        scores = tuple(score for token, score in pairs if token < self._spec.first_time)
        made, place = [], 0
        for timed in found:
            text, count = await engine.detokenize(timed.tokens), len(timed.tokens)
            times = start + timed.start, start + timed.end
            made.append(Spoken(*times, text, timed.tokens, timed.written, start, window, scores[place : place + count]))
            place += count
        if made and self._options.has_words:
            made = await self._with_words(made, written.audio, length)
        return made, advance

    async def _with_words(self, said: list[Spoken], audio: bytes, length: float) -> list[Spoken]:
        spec, before = self._spec, self.writer.prompt()
        text = [token for segment in said for token in segment.tokens]
        raw = await self.writer.pooled((*before, spec.no_timestamps, *text, spec.end), audio, Pooling(alignment=True))
        scores = alignment.scores_of(raw, len(spec.alignment), spec.positions)
        pieces = [score.token_bytes for segment in said for score in segment.logprobs]
        positions, has_spaces = round(length / alignment.STEP_S), self.writer.has_spaces
        words = iter(await asyncio.to_thread(alignment.words_of, pieces, scores, len(before), positions, has_spaces))
        found, written, end, seek = [], 0, 0, said[0].seek
        for segment in said:
            end, own = end + len(segment.tokens), list[Word]()
            while written < end and (word := next(words, None)) is not None:
                own.append(replace(word, start=seek + word.start, end=seek + word.end))
                written += word.tokens
            found.append(replace(segment, words=tuple(own)))
        return found
