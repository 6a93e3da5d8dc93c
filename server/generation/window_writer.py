"""One window of sound becomes text: the engine writes it, at higher temperatures where the text cannot be trusted.

While somebody speaks the window that goes on is written again and again. Words that two texts in a row agree on are
given and never taken back, and every later text begins with them. Only the first part of a window is written early, so
that a window that is full can be cut at the quietest place behind it.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from engine.bundle.manifest import Manifest
from engine.bundle.specs import SpeechSpec
from engine.client.engine import Engine, TokenStream
from engine.errors import Busy
from engine.request import Pooling, Request, SamplingParams, SpeechRules, TextLogprob
from engine.speech.alignment import TEMPERATURES, WindowText, best_of, shares_of
from engine.speech.live import Float32, LiveSound, Piece, Utterance, settled, text_of_pieces
from engine.speech.log_mel import HOP, SAMPLE_RATE, log_mel
from engine.speech.special_tokens import WITHOUT_SPACES
from server.http.errors import RequestTimeout, refuse

CANDIDATES = 5  # that are drawn where the temperature is above 0; the most probable counts
ENGLISH = "en"


@dataclass(frozen=True, slots=True)
class Written:
    """A window as the engine wrote it. pieces: the tokens of the text without times, and what it began with."""

    window: WindowText
    logprobs: tuple[TextLogprob, ...]
    audio: bytes
    pieces: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a text follows and begins with. said: tokens before it. begun: of it, which stay; then it has no times."""

    said: Sequence[int] = ()
    begun: tuple[Piece, ...] = ()
    has_times: bool = True


class WindowWriter:
    """Writes windows of one recording or one utterance. language: "" = the first window tells."""

    def __init__(
        self, engine: Engine, name: str, language: str, translates: bool = False, among: Collection[str] = ()
    ) -> None:
        """name: of its requests to the engine. among: languages that the first window may tell, () = all."""
        spec = engine.info.manifest.speech
        assert spec is not None, "the route has asked"
        self.spec: SpeechSpec = spec
        self.language = language or ("" if spec.languages else ENGLISH)
        self.window_s = spec.frames * HOP / SAMPLE_RATE
        self._engine, self._name = engine, name
        self._translates = translates
        self._among = among or self.spec.languages
        self._numbers: Iterator[int] = iter(range(1 << 62))

    @property
    def has_spaces(self) -> bool:
        return self.language not in WITHOUT_SPACES

    async def write(
        self, samples: Float32, beginning: Beginning, temperatures: Sequence[float] = TEMPERATURES
    ) -> Written:
        """What is said in a window; at the next temperature where it cannot be trusted. Raises what `submit` raises."""
        audio = await asyncio.to_thread(self._features, samples)
        no_speech = await self.detect_language(audio)
        written: dict[WindowText, Written] = {}
        for temperature in temperatures:
            seeds = range(CANDIDATES if temperature else 1)
            texts = [self._text(audio, beginning, temperature, no_speech, seed) for seed in seeds]
            drawn = {made.window: made for made in await asyncio.gather(*texts)}
            best = max(drawn, key=lambda window: window.mean_logprob)
            if best.is_trusted:
                return drawn[best]
            written[best] = drawn[best]
        return written[best_of(list(written))]

    async def detect_language_of(self, samples: Float32) -> None:
        await self.detect_language(await asyncio.to_thread(self._features, samples))

    async def detect_language(self, audio: bytes) -> float:
        """The probability of silence; what is spoken is noted if nobody has said."""
        spec = self.spec
        shares = shares_of(await self.pooled((spec.start,), audio, Pooling()))
        if not self.language:
            self.language = max(self._among, key=lambda code: shares[spec.languages[code]])
        return shares[spec.no_speech]

    async def pooled(self, prompt: tuple[int, ...], audio: bytes, pooling: Pooling) -> bytes:
        request = self._request(prompt, SamplingParams(max_tokens=0, seed=0), audio)
        stream = self._engine.submit(replace(request, pooling=pooling))
        raw = b""
        try:
            async for delta in stream:
                raw = delta.vector or raw
        finally:
            stream.abort()
        return raw

    def prompt(self, said: Sequence[int] = ()) -> tuple[int, ...]:
        spec = self.spec
        most = self._engine.info.max_context // 2 - 1
        before = (spec.previous, *said[-most:]) if said else ()
        task = spec.translate if self._translates else spec.transcribe
        return (*before, spec.start, *((spec.languages[self.language], task) if spec.languages else ()))

    async def ids(self, text: str) -> list[int]:
        """Of a text that was said before; special tokens written in it are left out."""
        if not text.strip():
            return []
        ids = await self._engine.tokenize(f" {text.strip()}", add_special=False)
        return [token for token in ids if token < self.spec.end]

    def _features(self, samples: Float32) -> bytes:
        return log_mel(samples, self.spec.mels, self.spec.frames).tobytes()

    async def _text(
        self, audio: bytes, beginning: Beginning, temperature: float, no_speech: float, seed: int
    ) -> Written:
        spec, begun, context = self.spec, beginning.begun, self._engine.info.max_context
        prompt = self.prompt(beginning.said)
        if not beginning.has_times:
            prompt = (*prompt, spec.no_timestamps, *(token for token, _ in begun))
        most = min(context // 2 - len(begun), context - len(prompt))
        first = () if begun else spec.first
        rules = SpeechRules(spec.suppressed, first, spec.end, spec.first_time, beginning.has_times)
        params = SamplingParams(
            max(1, most), temperature=temperature, stop_token_ids=(spec.end,), logprobs=0, speech=rules, seed=seed
        )
        tokens, logprobs = await _collected(self._engine.submit(self._request(prompt, params, audio)))
        kept = tuple(token for token in tokens if token != spec.end)
        words = tuple(token for token in kept if token < spec.first_time)
        scored = zip(kept, logprobs, strict=False)
        pieces = (*begun, *((token, score.token_bytes) for token, score in scored if token < spec.end))
        text = await self._engine.detokenize((*(token for token, _ in begun), *words)) if begun or words else ""
        window = WindowText(kept, tuple(each.logprob for each in logprobs), text.strip(), temperature, no_speech)
        return Written(window, logprobs, audio, pieces)

    def _request(self, prompt: tuple[int, ...], params: SamplingParams, audio: bytes) -> Request:
        return Request(f"{self._name}-{next(self._numbers)}", prompt, params, audio=audio)


async def _collected(stream: TokenStream) -> tuple[list[int], tuple[TextLogprob, ...]]:
    tokens: list[int] = []
    logprobs: list[TextLogprob] = []
    try:
        async for delta in stream:
            tokens += delta.token_ids
            logprobs += delta.logprobs
    finally:
        stream.abort()
    return tokens, tuple(logprobs)


def speech_spec(manifest: Manifest) -> SpeechSpec:
    """What makes it a model of speech; refused by name when it is none."""
    if manifest.speech is None:
        message = f"The model does not transcribe: its bundle is for the task '{manifest.task}'. Serve a Whisper."
        raise refuse(message, "model", "model_not_supported")
    return manifest.speech


def check_languages(spec: SpeechSpec, language: str, among: Sequence[str]) -> tuple[str, list[str]]:
    """The codes as the model knows them, "" for none; refused by name when it does not, and where both are given."""
    if language and among:
        raise refuse("'languages' excludes 'language'.", "languages", "invalid_value")
    listed = (_known(spec, code, "languages") for code in among)
    return _known(spec, language, "language"), [code for code in listed if code]


def _known(spec: SpeechSpec, code: str, field: str) -> str:
    wanted = code.strip().lower()
    if not wanted or wanted in spec.languages or (not spec.languages and wanted == ENGLISH):
        return wanted
    known = ", ".join(sorted(spec.languages)) or ENGLISH
    raise refuse(f"Invalid '{field}': this model knows {known}.", field, "invalid_value")


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
