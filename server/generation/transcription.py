"""A recording becomes segments of text: which windows are written, again at which temperature, and what follows."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, replace

from engine.bundle.specs import SpeechSpec
from engine.client.engine import TokenStream
from engine.errors import HexserveError
from engine.request import Pooling, Request, SamplingParams, SpeechRules, TextLogprob
from engine.speech.alignment import Word, scores_of, words_of
from engine.speech.cutting import Float32, Recording, Span, VoiceActivity, windows
from engine.speech.languages import WITHOUT_SPACES
from engine.speech.log_mel import HOP, SAMPLE_RATE, log_mel
from engine.speech.transcript import FREE_TEMPERATURE, STEP_S, TEMPERATURES, WindowText, best_of, segments, shares_of
from server.generation.answers import Envelope
from server.generation.launch import Service
from server.http.errors import RequestTimeout, refuse

WINDOWS_AT_ONCE = 16  # of one recording
CANDIDATES = 5  # that are drawn where the temperature is above 0; the most probable counts
ENGLISH = "en"
LEAST_S = 0.1  # nobody says a word in less


@dataclass(frozen=True, slots=True)
class SpeechOptions:
    """What is asked for. language: "" = it is detected. temperature: None = as low as can be trusted.

    activity: where somebody speaks decides where windows begin, and all of them are written at once; None = each
    begins where the one before has ended, and knows its text. has_words: with the times of words.
    """

    translates: bool
    language: str
    prompt: str
    temperature: float | None
    activity: VoiceActivity | None
    has_words: bool = False


@dataclass(frozen=True, slots=True)
class Spoken:
    """Times in seconds of the recording. window: what the model wrote, of which these tokens are a part.

    written: the tokens with their times. words: those that begin in it, if asked for.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...]
    written: tuple[int, ...]
    seek: float
    window: WindowText
    logprobs: tuple[TextLogprob, ...] = ()
    words: tuple[Word, ...] = ()


@dataclass(frozen=True, slots=True)
class _Written:
    """A window as the engine wrote it."""

    window: WindowText
    logprobs: tuple[TextLogprob, ...]
    audio: bytes


class TranscriptionRun:
    """One request. `segments` gives what was said in order; every exit path ends with `abort`, repeatable."""

    def __init__(self, service: Service, envelope: Envelope, recording: Recording, options: SpeechOptions) -> None:
        spec = service.engine.info.manifest.speech
        assert spec is not None, "the route has asked"
        self.language = options.language or ("" if spec.languages else ENGLISH)
        self.recording = recording
        self._service, self._envelope = service, envelope
        self._spec: SpeechSpec = spec
        self._options = options
        self._numbers: Iterator[int] = iter(range(1 << 62))
        self._window_s = spec.frames * HOP / SAMPLE_RATE
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        service.server.in_flight.check_open()
        service.server.in_flight.enter(self)

    def fail(self, error: HexserveError) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    def abort(self) -> None:
        """Leave the count of requests in flight."""
        self._service.server.in_flight.leave(self)
        self._failed.cancel()

    async def segments(self) -> AsyncIterator[Spoken]:
        """What is said, in order. Raises what the engine raises, RequestTimeout, and what `fail` is told."""
        pieces = self._apart() if self._options.activity is not None else self._in_turn()
        limit_s = self._service.settings.request_timeout_s
        end_s = asyncio.get_running_loop().time() + limit_s if limit_s else None
        try:
            while True:
                found = await self._next(pieces, end_s)
                if found is None:
                    return
                for segment in found:
                    yield segment
        finally:
            await pieces.aclose()

    async def _next(self, pieces: AsyncIterator[list[Spoken]], end_s: float | None) -> list[Spoken] | None:
        """The segments of the next window; None at the end."""
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

    # -- which windows ------------------------------------------------------------------------------------------

    async def _in_turn(self) -> AsyncGenerator[list[Spoken], None]:
        """Window after window; each knows the text before it."""
        first, start = await self._ids(self._options.prompt), 0.0
        said: list[int] = list(first)
        while self.recording.seconds - start > LEAST_S:
            end = min(start + self._window_s, self.recording.seconds)
            written = await self._write(self.recording.cut(start, end), said)
            found, advance = await self._segments(written, start, end - start)
            yield found
            for segment in found:
                said += segment.written  # with times: the next window would lose its own
            if written.window.temperature > FREE_TEMPERATURE or not written.window.is_trusted:
                said = []
            start += advance

    async def _apart(self) -> AsyncGenerator[list[Spoken], None]:
        """Windows of speech, many at once; they are given in order."""
        activity = self._options.activity
        assert activity is not None
        spans, said = windows(self.recording, activity, self._window_s), await self._ids(self._options.prompt)
        if spans and not self.language:
            await self._language(self._features(self.recording.cut(*spans[0])))
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

    async def _segments(self, written: _Written, start: float, length: float) -> tuple[list[Spoken], float]:
        """The segments of a window at its place in the recording, and how far the next one begins behind it."""
        window, engine = written.window, self._service.engine
        if window.is_silence:
            return [], length
        found, advance = segments(window.tokens, self._spec.first_time, length)
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
        """The segments of a window of `length` seconds with their words."""
        spec, before = self._spec, self._prompt([])
        text = [token for segment in said for token in segment.tokens]
        raw = await self._pooled((*before, spec.no_timestamps, *text, spec.end), audio, Pooling(alignment=True))
        scores = scores_of(raw, len(spec.alignment), spec.positions)
        pieces = [score.token_bytes for segment in said for score in segment.logprobs]
        positions, has_spaces = round(length / STEP_S), self.language not in WITHOUT_SPACES
        words = iter(await asyncio.to_thread(words_of, pieces, scores, len(before), positions, has_spaces))
        found, written, end, seek = [], 0, 0, said[0].seek
        for segment in said:
            end, own = end + len(segment.tokens), list[Word]()
            while written < end and (word := next(words, None)) is not None:
                own.append(replace(word, start=seek + word.start, end=seek + word.end))
                written += word.tokens
            found.append(replace(segment, words=tuple(own)))
        return found

    # -- one window ---------------------------------------------------------------------------------------------

    async def _write(self, samples: Float32, said: list[int]) -> _Written:
        """What is said in a window; at a higher temperature where it cannot be trusted."""
        audio = await asyncio.to_thread(self._features, samples)
        no_speech = await self._language(audio)
        asked = self._options.temperature
        written: dict[WindowText, _Written] = {}
        for temperature in TEMPERATURES if asked is None else (asked,):
            texts = [
                self._text(audio, self._prompt(said), temperature, no_speech, seed)
                for seed in range(CANDIDATES if temperature else 1)
            ]
            drawn = {made.window: made for made in await asyncio.gather(*texts)}
            best = best_of(list(drawn))
            if best.is_trusted:
                return drawn[best]
            written |= drawn
        return written[best_of(list(written))]

    def _features(self, samples: Float32) -> bytes:
        return log_mel(samples, self._spec.mels, self._spec.frames).tobytes()

    async def _language(self, audio: bytes) -> float:
        """The probability of silence; what is spoken is noted if nobody has said."""
        spec = self._spec
        shares = shares_of(await self._pooled((spec.start,), audio, Pooling()))
        if not self.language:
            self.language = max(spec.languages, key=lambda code: shares[spec.languages[code]])
        return shares[spec.no_speech]

    async def _pooled(self, prompt: tuple[int, ...], audio: bytes, pooling: Pooling) -> bytes:
        request = self._request(prompt, SamplingParams(max_tokens=0, seed=0), audio)
        stream = self._service.engine.submit(replace(request, pooling=pooling))
        raw = b""
        try:
            async for delta in stream:
                raw = delta.vector or raw
        finally:
            stream.abort()
        return raw

    def _prompt(self, said: list[int]) -> tuple[int, ...]:
        """What was said before, as far as it fits, and the task."""
        spec = self._spec
        most = self._service.engine.info.max_context // 2 - 1
        before = (spec.previous, *said[-most:]) if said else ()
        task = spec.translate if self._options.translates else spec.transcribe
        return (*before, spec.start, *((spec.languages[self.language], task) if spec.languages else ()))

    async def _text(
        self, audio: bytes, prompt: tuple[int, ...], temperature: float, no_speech: float, seed: int
    ) -> _Written:
        spec, engine = self._spec, self._service.engine
        rules = SpeechRules(spec.suppressed, spec.first, spec.end, spec.first_time, times=True)
        most = min(engine.info.max_context // 2, engine.info.max_context - len(prompt))
        params = SamplingParams(
            most, temperature=temperature, stop_token_ids=(spec.end,), logprobs=0, speech=rules, seed=seed
        )
        tokens, logprobs = await _collected(engine.submit(self._request(prompt, params, audio)))
        kept = tuple(token for token in tokens if token != spec.end)
        words = tuple(token for token in kept if token < spec.first_time)
        text = await engine.detokenize(words) if words else ""
        window = WindowText(kept, tuple(each.logprob for each in logprobs), text.strip(), temperature, no_speech)
        return _Written(window, logprobs, audio)

    def _request(self, prompt: tuple[int, ...], params: SamplingParams, audio: bytes) -> Request:
        return Request(f"{self._envelope.id}-{next(self._numbers)}", prompt, params, audio=audio)

    async def _ids(self, text: str) -> list[int]:
        """Of a text that was said before; special tokens written in it are left out."""
        if not text.strip():
            return []
        ids = await self._service.engine.tokenize(f" {text.strip()}", add_special=False)
        return [token for token in ids if token < self._spec.end]


async def _collected(stream: TokenStream) -> tuple[list[int], tuple[TextLogprob, ...]]:
    """All tokens of a stream and their log-probabilities."""
    tokens: list[int] = []
    logprobs: list[TextLogprob] = []
    try:
        async for delta in stream:
            tokens += delta.token_ids
            logprobs += delta.logprobs
    finally:
        stream.abort()
    return tokens, tuple(logprobs)


def check_language(spec: SpeechSpec, code: str) -> str:
    """The code as the model knows it, "" for none; refused by name when it does not."""
    wanted = code.strip().lower()
    if not wanted or wanted in spec.languages or (not spec.languages and wanted == ENGLISH):
        return wanted
    known = ", ".join(sorted(spec.languages)) or ENGLISH
    raise refuse(f"Invalid 'language': this model knows {known}.", "language", "invalid_value")
