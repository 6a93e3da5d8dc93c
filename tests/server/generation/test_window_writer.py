"""One window: which texts are asked for, which of them counts, and what the engine is told."""

from typing import Any

import numpy as np
import pytest

from engine.request import Request, SpeechRules
from engine.speech.live import Piece
from server.generation.window_writer import Beginning, WindowWriter, check_languages, speech_spec
from server.http.errors import Refusal
from tests.server.scripted_engine import ScriptedEngine
from tests.server.speaking_engine import (
    DE,
    EN,
    END,
    NO_SPEECH,
    NO_TIMES,
    PREVIOUS,
    SPEC,
    START,
    TRANSCRIBE,
    TRANSLATE,
    SpeakingEngine,
)

SOUND = np.ones(16_000, np.float32)
REPEATED = " ".join(["ha"] * 60)


def writer(engine: SpeakingEngine, language: str = "en", **given: Any) -> WindowWriter:
    return WindowWriter(engine, "trsc", language, **given)


def drawn(asked: list[Request]) -> list[tuple[float, int | None]]:
    return [(each.params.temperature, each.params.seed) for each in asked]


async def test_a_text_that_can_be_trusted_is_written_once() -> None:
    """Its log-probabilities have that of the end, its pieces no time."""
    engine = SpeakingEngine("[0] one two [1]")
    written = await writer(engine).write(SOUND, Beginning())
    times, words = (engine.token("[0]"), engine.token("[1]")), (engine.token(" one"), engine.token(" two"))
    window = written.window
    assert (window.tokens, window.text, window.temperature) == ((times[0], *words, times[1]), "one two", 0)
    assert window.logprobs == (-0.1,) * 5
    assert len(written.logprobs) == 5
    assert written.pieces == tuple(zip(words, (b" one", b" two"), strict=True))
    (asked,) = engine.asked
    assert asked.audio == written.audio
    assert asked.prompt_ids == (START, EN, TRANSCRIBE)
    assert drawn([asked]) == [(0, 0)]
    assert (asked.params.stop_token_ids, asked.params.logprobs, asked.params.max_tokens) == ((END,), 0, 224)
    assert asked.params.speech == SpeechRules((), (), END, SPEC.first_time, times=True)
    assert engine.live == set()


async def test_of_five_that_are_drawn_the_most_probable_counts() -> None:
    """Higher temperatures come only where that one cannot be trusted."""
    five = [("a", -0.9), ("b", -0.8), ("c", -0.3), ("d", -0.4), (REPEATED, -0.5)]
    engine = SpeakingEngine(("first", -1.1), *five)
    written = await writer(engine).write(SOUND, Beginning())
    assert (written.window.text, written.window.temperature) == ("c", 0.2)
    assert written.pieces == ((engine.token("c"), b"c"),)
    assert drawn(engine.asked) == [(0, 0), *((0.2, seed) for seed in range(5))]


async def test_a_temperature_is_known_by_its_most_probable_text() -> None:
    """A menu repeats itself. What is improbable beside it, and does not, is no better."""
    five = [(REPEATED, -0.1), ("a", -0.9), ("b", -0.8), ("c", -0.9), ("d", -0.9)]
    engine = SpeakingEngine(("first", -1.1), *five, *((f"later {number}", -0.5 - number / 10) for number in range(5)))
    written = await writer(engine).write(SOUND, Beginning())
    assert (written.window.text, written.window.temperature) == ("later 0", 0.4)


async def test_where_none_can_be_trusted_the_most_probable_of_all_counts() -> None:
    texts = [(f"t{number}", -3.0) for number in range(26)]
    texts[3] = ("best", -1.5)
    engine = SpeakingEngine(*texts)
    written = await writer(engine).write(SOUND, Beginning())
    assert (written.window.text, written.window.temperature) == ("best", 0.2)
    assert drawn(engine.asked)[1:] == [(heat, seed) for heat in (0.2, 0.4, 0.6, 0.8, 1.0) for seed in range(5)]


async def test_a_text_that_goes_on_begins_with_what_stays() -> None:
    """It has no times, and any word may follow."""
    engine = SpeakingEngine("one two three")
    engine.describe(suppressed=(7,), first=(8,))
    begun: tuple[Piece, ...] = ((engine.token("one"), b"one"), (engine.token(" two"), b" two"))
    written = await writer(engine).write(SOUND, Beginning((5, 6), begun, has_times=False))
    assert written.window.text == "one two three"
    assert written.pieces == (*begun, (engine.token(" three"), b" three"))
    (asked,) = engine.asked
    assert asked.prompt_ids == (PREVIOUS, 5, 6, START, EN, TRANSCRIBE, NO_TIMES, *(token for token, _ in begun))
    assert asked.params.max_tokens == 222
    assert asked.params.speech == SpeechRules((7,), (), END, SPEC.first_time, times=False)
    await writer(engine).write(SOUND, Beginning(has_times=False))
    assert engine.asked[1].params.speech == SpeechRules((7,), (8,), END, SPEC.first_time, times=False)


async def test_half_of_the_context_is_for_the_text() -> None:
    """A token is left for the one that says that something was said before."""
    engine = SpeakingEngine("one")
    said = list(range(10, 500))
    await writer(engine).write(SOUND, Beginning(said))
    (asked,) = engine.asked
    assert asked.prompt_ids == (PREVIOUS, *said[-223:], START, EN, TRANSCRIBE)
    assert asked.params.max_tokens == 448 - 227


async def test_a_text_that_has_filled_its_half_may_still_end() -> None:
    engine = SpeakingEngine("")
    begun = ((engine.token("ha"), b"ha"),) * 224
    await writer(engine).write(SOUND, Beginning((), begun, has_times=False))
    assert engine.asked[0].params.max_tokens == 1


async def test_nothing_is_written() -> None:
    written = await writer(SpeakingEngine("")).write(SOUND, Beginning())
    assert (written.window.text, written.pieces) == ("", ())


async def test_the_language_that_is_most_probable_is_kept() -> None:
    """The question tells the probability of silence as well: a softmax over all tokens."""
    engine = SpeakingEngine("one")
    engine.silence = 8.0
    asking = writer(engine, language="")
    assert asking.language == ""
    share = np.exp(8.0) / (np.exp(8.0) + np.exp(9.0) + 998)
    written = await asking.write(SOUND, Beginning())
    assert (asking.language, written.window.no_speech) == ("de", pytest.approx(share))
    assert engine.asked[0].prompt_ids == (START, DE, TRANSCRIBE)
    question = engine.submitted[0][0]
    assert (question.prompt_ids, question.params.max_tokens, question.audio) == ((START,), 0, written.audio)
    asking.language = "en"
    await asking.detect_language_of(SOUND)
    assert asking.language == "en"
    assert len({request.id for request, *_ in engine.submitted}) == len(engine.submitted)


def test_prompts() -> None:
    engine = SpeakingEngine("")
    assert writer(engine, "de", translates=True).prompt() == (START, DE, TRANSLATE)
    assert writer(engine).prompt([7]) == (PREVIOUS, 7, START, EN, TRANSCRIBE)
    engine.describe(languages={})
    english = writer(engine, "", translates=True)
    assert (english.language, english.prompt([7])) == ("en", (PREVIOUS, 7, START))


@pytest.mark.parametrize(("language", "has_spaces"), [("en", True), ("ja", False), ("zh", False)])
def test_which_languages_have_spaces(language: str, has_spaces: bool) -> None:
    assert writer(SpeakingEngine(""), language).has_spaces is has_spaces


async def test_what_was_said_before_has_no_special_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, texts = SpeakingEngine(""), list[tuple[str, bool]]()

    async def tokenize(text: str, add_special: bool) -> tuple[int, ...]:
        texts.append((text, add_special))
        return 7, END, NO_SPEECH, 8

    monkeypatch.setattr(engine, "tokenize", tokenize)
    assert await writer(engine).ids("  a word\n") == [7, 8]
    assert await writer(engine).ids(" ") == []
    assert texts == [(" a word", False)]


def test_which_languages_a_model_knows() -> None:
    engine = SpeakingEngine("")
    assert [check_languages(SPEC, code, ())[0] for code in ("", " ", "de", " EN ")] == ["", "", "de", "en"]
    assert check_languages(SPEC, "", ["de", " ", "EN "]) == ("", ["de", "en"])
    for given, param in ((("fr", ()), "language"), (("", ["de", "fr"]), "languages")):
        with pytest.raises(Refusal, match=f"'{param}': this model knows de, en") as refusal:
            check_languages(SPEC, *given)
        assert refusal.value.error.param == param
    with pytest.raises(Refusal, match="'languages' excludes 'language'"):
        check_languages(SPEC, "de", ["de"])
    engine.describe(languages={})
    english = speech_spec(engine.info.manifest)
    assert [check_languages(english, code, ())[0] for code in ("", "en")] == ["", "en"]
    with pytest.raises(Refusal, match="knows en"):
        check_languages(english, "de", ())


def test_a_model_of_text_is_refused() -> None:
    with pytest.raises(Refusal, match="does not transcribe") as refusal:
        speech_spec(ScriptedEngine().info.manifest)
    assert refusal.value.error.param == "model"
