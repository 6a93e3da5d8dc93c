"""A recording in windows: where each begins, what it knows of those before, and what is said when."""

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest

from engine.config import EngineConfig
from engine.errors import Busy, BusyReason, EngineFailure
from engine.request import Request
from engine.speech.live import CHUNK_S, Recording, VoiceActivity
from engine.speech.log_mel import SAMPLE_RATE, log_mel
from server.generation import transcription
from server.generation.launch import Server, Service
from server.generation.transcription import SpeechOptions, Spoken, TranscriptionRun
from server.http.errors import RequestTimeout
from server.middleware.auth import Caller, KeyRing, Limiter, Rates
from server.observability.metrics import RequestFacts
from server.settings import Settings
from tests.server.one_model import create_app
from tests.server.scripted_engine import NAME
from tests.server.speaking_engine import DE, EN, PREVIOUS, START, TRANSCRIBE, TRANSLATE, SpeakingEngine

ACTIVITY = VoiceActivity(padding_s=0.0)
REPEATED = "[0]" + " ha" * 60 + " [1]"  # nobody trusts that


def served(engine: SpeakingEngine, **settings: Any) -> Service:
    app = create_app(Settings(EngineConfig("unused"), **settings), engine, KeyRing())
    server: Server = app.state.server
    caller = Caller("somebody", Limiter(Rates(), lambda: 0.0))
    return Service(server, server.settings, engine, NAME, caller, RequestFacts(), nullcontext)


def noise(seconds: float, *speech: tuple[float, float]) -> Recording:
    """No two of its windows are the same; somebody speaks between these times."""
    chunks = round(seconds / CHUNK_S)
    heard = [any(start <= place * CHUNK_S < end for start, end in speech) for place in range(chunks)]
    samples = np.random.default_rng(0).normal(0, 0.1, round(seconds * SAMPLE_RATE)).astype("<f4")
    return Recording(samples, np.array(heard, "<f4"))


@contextmanager
def begun(
    engine: SpeakingEngine, recording: Recording, timeout_s: float = 0, **given: Any
) -> Iterator[TranscriptionRun]:
    """A run that has left in the end."""
    service = served(engine, request_timeout_s=timeout_s)
    usual = {"translates": False, "language": "", "prompt": "", "temperature": None, "activity": None}
    run = TranscriptionRun(service, service.envelope("trsc-"), recording, SpeechOptions(**(usual | given)))
    assert service.server.in_flight.count == 1
    try:
        yield run
    finally:
        run.abort()
        run.abort()
        assert service.server.in_flight.count == 0
        assert engine.live == set()


async def transcribed(engine: SpeakingEngine, recording: Recording, **given: Any) -> list[Spoken]:
    with begun(engine, recording, **given) as run:
        return [segment async for segment in run.segments()]


def features(recording: Recording, start: float, end: float) -> bytes:
    return log_mel(recording.cut(start, end), 8, 3000).tobytes()


def times(found: list[Spoken]) -> list[tuple[str, float, float, float]]:
    return [(each.text, each.start, each.end, each.seek) for each in found]


async def test_windows_in_turn_know_the_text_before() -> None:
    """A window begins where the last segment that has ended ends, and at most its length behind the one before."""
    engine = SpeakingEngine("[0] one two [12] [12] three [20] [20] and", "[1] and more [30]", "[0] last [5]")
    recording = noise(70)
    found = await transcribed(engine, recording)
    assert times(found) == [
        (" one two", 0, 12, 0),
        (" three", 12, 20, 0),
        (" and more", 21, 50, 20),
        (" last", 50, 55, 50),
    ]
    assert [each.audio for each in engine.asked] == [
        features(recording, 0, 30),
        features(recording, 20, 50),
        features(recording, 50, 70),
    ]
    said = [
        [engine.token(word) for word in text]
        for text in (
            ("[0]", " one", " two", "[12]", "[12]", " three", "[20]"),
            ("[1]", " and", " more", "[30]"),
        )
    ]
    begins = (START, DE, TRANSCRIBE)
    assert [each.prompt_ids for each in engine.asked] == [
        begins,
        (PREVIOUS, *said[0], *begins),
        (PREVIOUS, *said[0], *said[1], *begins),
    ]
    assert [each.written for each in found[:3]] == [tuple(said[0][:4]), tuple(said[0][4:]), tuple(said[1])]
    assert [[score.token for score in each.logprobs] for each in found] == [
        [" one", " two"],
        [" three"],
        [" and", " more"],
        [" last"],
    ]
    assert [[engine.token(score.token) for score in each.logprobs] for each in found] == [
        list(each.tokens) for each in found
    ]


async def test_the_first_window_knows_the_prompt() -> None:
    engine = SpeakingEngine("[0] one [5]")
    await transcribed(engine, noise(40), prompt="two words", language="en", translates=True)
    begins = (START, EN, TRANSLATE)
    written = [engine.token(word) for word in ("[0]", " one", "[5]")]
    assert [each.prompt_ids for each in engine.asked] == [
        (PREVIOUS, 5, 5, *begins),
        (PREVIOUS, 5, 5, *written, *begins),
    ]


@pytest.mark.parametrize(
    ("text", "temperature", "is_known"),
    [
        ("[0] one [1]", 0.0, True),
        ("[0] one [1]", 0.5, True),
        ("[0] one [1]", 0.6, False),
        (REPEATED, 0.0, False),
        (REPEATED, 0.6, False),
    ],
)
async def test_what_is_not_sure_is_forgotten(text: str, temperature: float, is_known: bool) -> None:
    """Also what came before it."""
    engine = SpeakingEngine(text)
    found = await transcribed(engine, noise(40), prompt="two words", temperature=temperature)
    assert [each.seek for each in found] == [0, 30]
    assert {each.params.temperature for each in engine.asked} == {temperature}
    assert (PREVIOUS in engine.asked[-1].prompt_ids) is is_known


async def test_nothing_is_said_in_silence() -> None:
    """The next window begins behind it, whatever was written; sure words are no silence."""
    engine = SpeakingEngine(("[0] you [1] [1] you", -2.0), ("[0] you [1] [1] you", -2.0), ("[0] yes [1]", -0.5))
    engine.silence = 12.0
    recording = noise(70)
    assert times(await transcribed(engine, recording)) == [(" yes", 60, 61, 60)]
    assert [each.audio for each in engine.asked] == [
        features(recording, 0, 30),
        features(recording, 30, 60),
        features(recording, 60, 70),
    ]


@pytest.mark.parametrize(("seconds", "windows"), [(0.1, 0), (0.2, 1), (30.05, 1), (30.2, 2)])
async def test_nobody_says_a_word_in_a_tenth_of_a_second(seconds: float, windows: int) -> None:
    engine = SpeakingEngine("[0] one [30]")
    assert len(await transcribed(engine, noise(seconds))) == len(engine.asked) == windows


class ByWindow(SpeakingEngine):
    """Says the text of each window, in whatever order they are asked for."""

    texts: dict[bytes, str]
    most = 0  # at once

    def next_text(self, request: Request) -> str:
        self.most = max(self.most, len(self.live))
        return self.texts[request.audio]


async def test_windows_of_speech_come_in_order() -> None:
    """They know the prompt and not each other; the first one tells the language of all."""
    recording = noise(60, (3.2, 16), (28.8, 48))
    engine = ByWindow()
    first, second = (3.2, 16.0), (28.8, 48.0)
    engine.texts = {
        features(recording, *first): "[0] one [2] [2] two and much more [12]",
        features(recording, *second): "[0] three",
    }
    found = await transcribed(engine, recording, activity=ACTIVITY, prompt="word")
    assert [each.text for each in found] == [" one", " two and much more", " three"]
    assert [(each.start, each.end, each.seek) for each in found] == [
        pytest.approx(expected) for expected in ((3.2, 5.2, 3.2), (5.2, 15.2, 3.2), (28.8, 48, 28.8))
    ]
    assert [each.prompt_ids for each in engine.asked] == [(PREVIOUS, 5, START, DE, TRANSCRIBE)] * 2
    questions = [each.audio for each, *_ in engine.submitted if each.pooling is not None]
    assert questions[0] == features(recording, *first)
    assert len(questions) == 3  # and one of each window, for its silence


async def test_nobody_speaks() -> None:
    engine = SpeakingEngine("")
    assert await transcribed(engine, noise(3), activity=ACTIVITY) == []
    assert engine.submitted == []


async def test_so_many_windows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcription, "WINDOWS_AT_ONCE", 2)
    engine = SpeakingEngine("[0] one [1]")
    engine.describe(frames=100)
    engine.hold(0)
    with begun(engine, noise(10, (0, 10)), activity=ACTIVITY, language="de") as run:
        reading = asyncio.ensure_future(anext(run.segments()))
        while len(engine.live) < 2:
            await asyncio.sleep(0.001)
        for _ in range(50):
            await asyncio.sleep(0)
        assert len(engine.live) == 2
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_who_leaves_after_a_window_takes_the_others_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcription, "WINDOWS_AT_ONCE", 1)
    engine = SpeakingEngine("[0] one [1]")
    engine.describe(frames=100)
    engine.hold(5)  # whether the first window is silence, three words, the end
    with begun(engine, noise(3, (0, 3)), activity=ACTIVITY, language="de") as run:
        async with aclosing(run.segments()) as said:
            assert (await anext(said)).text == " one"
        assert engine.live == set()


@pytest.mark.parametrize("activity", [None, ACTIVITY])
async def test_words_have_their_times(activity: VoiceActivity | None) -> None:
    """The engine of these tests looks at 0.2 s for each token."""
    engine = SpeakingEngine("[0] one, two [2] [2] three [30]")
    recording = noise(32.4, (0, 32.4))
    found = await transcribed(engine, recording, activity=activity, has_words=True, language="en")
    seek = found[-1].seek
    assert seek == 30 if activity is None else 15 < seek < 30
    assert [[word.text for word in each.words] for each in found] == [[" one,", " two"], [" three"]] * 2
    heard = [(round(word.start, 2), round(word.end, 2)) for each in found[:2] for word in each.words]
    assert heard == [(0, 0.2), (0.2, 0.4), (0.4, 0.6)]
    moved = [(word.start - seek, word.end - seek) for each in found[2:] for word in each.words]
    assert [(round(start, 2), round(end, 2)) for start, end in moved] == heard
    asked = [each.prompt_ids for each, *_ in engine.submitted if each.pooling is not None and each.pooling.alignment]
    assert len(asked) == 2 and all(PREVIOUS not in prompt for prompt in asked)


async def test_no_words_unless_asked_for() -> None:
    engine = SpeakingEngine("[0] one [1]")
    (found,) = await transcribed(engine, noise(2))
    assert found.words == ()
    assert not any(each.pooling.alignment for each, *_ in engine.submitted if each.pooling is not None)


async def test_what_the_engine_raises_ends_it() -> None:
    engine = SpeakingEngine("[0] one [30]", EngineFailure("The worker has gone."))
    with begun(engine, noise(40)) as run:
        said = run.segments()
        assert (await anext(said)).text == " one"
        with pytest.raises(EngineFailure):
            await anext(said)


@pytest.mark.parametrize("activity", [None, ACTIVITY])
async def test_it_has_its_time(activity: VoiceActivity | None) -> None:
    engine = SpeakingEngine("one")
    engine.hold(0)
    with begun(engine, noise(1, (0, 1)), timeout_s=0.01, activity=activity) as run:
        with pytest.raises(RequestTimeout):
            await anext(run.segments())
        assert engine.live == set()
    assert len(await transcribed(SpeakingEngine("one"), noise(1, (0, 1)), timeout_s=600, activity=activity)) == 1


async def test_a_server_that_ends_ends_it() -> None:
    """What follows is not let in."""
    engine = SpeakingEngine("one")
    engine.hold(0)
    service = served(engine)
    options = SpeechOptions(False, "", "", None, None)
    run = TranscriptionRun(service, service.envelope("trsc-"), noise(1), options)
    reading = asyncio.ensure_future(anext(run.segments()))
    while not engine.live:
        await asyncio.sleep(0.001)
    service.server.in_flight.end()
    with pytest.raises(Busy) as failure:
        await reading
    assert failure.value.reason is BusyReason.SHUTTING_DOWN
    assert engine.live == set()
    run.abort()
    with pytest.raises(Busy):
        TranscriptionRun(service, service.envelope("trsc-"), noise(1), options)
    assert service.server.in_flight.count == 0
