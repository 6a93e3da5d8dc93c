"""A scripted engine that writes speech down: what each text of a window says is given beforehand."""

import re
import threading
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.bundle.specs import ModelTask, SpeechSpec
from engine.errors import HexserveError
from engine.request import Delta, FinishReason, Request, TextLogprob
from tests.server.scripted_engine import ScriptedEngine, timings

END, START, EN, DE, TRANSLATE, TRANSCRIBE, PREVIOUS, NO_SPEECH, NO_TIMES = range(900, 909)
SPEC = SpeechSpec(
    mels=8,
    frames=3_000,
    positions=90,
    start=START,
    end=END,
    transcribe=TRANSCRIBE,
    translate=TRANSLATE,
    previous=PREVIOUS,
    no_speech=NO_SPEECH,
    no_timestamps=NO_TIMES,
    languages={"en": EN, "de": DE},
    alignment=((0, 0),),
)
STEPS_A_SECOND = 50


class SpeakingEngine(ScriptedEngine):
    """texts: the words of each text in the order in which they are asked for; the last one is said again and again.

    A word with its space is a token, and "[1.5]" the time of 1.5 s. Every question for the language is answered with
    `language`, and the logit `silence` for no speech; an error in place of words is raised. With a logprob a text has
    one of its own.
    """

    def __init__(self, *texts: str | tuple[str, float] | HexserveError, logprob: float = -0.1) -> None:
        super().__init__(self._answer, max_context=448)
        self.describe()
        self._texts = list(texts)
        self._words: list[str] = []
        self._logprob = logprob
        self.language, self.silence = DE, 0.0
        self.asked: list[Request] = []  # texts, without questions for the language
        self.has_asked = threading.Semaphore(0)

    def describe(self, **fields: Any) -> None:
        """Serve a model with other properties of speech."""
        self._describe(task=ModelTask.TRANSCRIBE, speech=msgspec.structs.replace(SPEC, **fields))

    def next_text(self, request: Request) -> str | tuple[str, float] | HexserveError:
        """What is said to a request."""
        return self._texts.pop(0) if len(self._texts) > 1 else self._texts[0]

    def _answer(self, request: Request) -> Sequence[Delta | HexserveError]:
        if request.pooling is not None:
            wanted = looks(request.prompt_ids) if request.pooling.alignment else self._languages()
            return [Delta("", finish=FinishReason.LENGTH, timings=timings(request, 0), vector=wanted.tobytes())]
        self.asked.append(request)
        self.has_asked.release()
        said = self.next_text(request)
        if isinstance(said, HexserveError):
            return [said]
        text, logprob = (said, self._logprob) if isinstance(said, str) else said
        words = [("" if place == 0 else " ") + word for place, word in enumerate(text.split(" "))] if text else []
        prompt = request.prompt_ids
        begun = len(prompt) - 1 - prompt.index(NO_TIMES) if NO_TIMES in prompt else 0
        deltas = [Delta(word, (self.token(word),), _score(word, logprob)) for word in words[begun:]]
        end = Delta("", (END,), _score("", logprob), FinishReason.STOP, timings=timings(request, len(deltas)))
        return [*deltas, end]

    def _languages(self) -> NDArray[np.float32]:
        logits = np.zeros(1000, "<f4")
        logits[self.language], logits[NO_SPEECH] = 9.0, self.silence
        return logits

    def token(self, word: str) -> int:
        """Its id."""
        time = re.fullmatch(r" ?\[([\d.]+)\]", word)
        if time is not None:
            return SPEC.first_time + round(float(time[1]) * STEPS_A_SECOND)
        if word not in self._words:
            self._words.append(word)
        return 10 + self._words.index(word)

    async def detokenize(self, ids: Sequence[int]) -> str:
        return "".join(self._words[token - 10] if token < END else f"<|{token}|>" for token in ids)


def looks(prompt: Sequence[int]) -> NDArray[np.float32]:
    """[1, tokens, positions]: from the one that says there are no times on, each looks at the ten positions behind
    those of the one before."""
    scores = np.zeros((1, len(prompt), SPEC.positions), "<f4")
    for place in range(len(prompt) - prompt.index(NO_TIMES)):
        scores[0, prompt.index(NO_TIMES) + place, 10 * place : 10 * place + 10] = 9.0
    return scores


def _score(word: str, logprob: float) -> tuple[TextLogprob, ...]:
    return (TextLogprob(word, word.encode(), logprob, ()),)
