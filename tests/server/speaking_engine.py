"""A scripted engine that writes speech down: what each text of a window says is given beforehand."""

import threading
from collections.abc import Sequence

import numpy as np

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
)


class SpeakingEngine(ScriptedEngine):
    """texts: the words of each text in the order in which they are asked for; the last one is said again and again.

    A word with its space is a token. Every language question is answered German; an error in place of words is raised.
    """

    def __init__(self, *texts: str | HexserveError, logprob: float = -0.1) -> None:
        super().__init__(self._answer, max_context=448)
        self._describe(task=ModelTask.TRANSCRIBE, speech=SPEC)
        self._texts = list(texts)
        self._words: list[str] = []
        self._logprob = logprob
        self.asked: list[Request] = []  # texts, without questions for the language
        self.has_asked = threading.Semaphore(0)

    def _answer(self, request: Request) -> Sequence[Delta | HexserveError]:
        if request.pooling is not None:
            logits = np.zeros(1000, "<f4")
            logits[DE] = 9.0
            return [Delta("", finish=FinishReason.LENGTH, timings=timings(request, 0), vector=logits.tobytes())]
        self.asked.append(request)
        self.has_asked.release()
        said = self._texts.pop(0) if len(self._texts) > 1 else self._texts[0]
        if isinstance(said, HexserveError):
            return [said]
        words = [("" if place == 0 else " ") + word for place, word in enumerate(said.split(" "))] if said else []
        prompt = request.prompt_ids
        begun = len(prompt) - 1 - prompt.index(NO_TIMES) if NO_TIMES in prompt else 0
        deltas = [Delta(word, (self.token(word),), self._score(word)) for word in words[begun:]]
        return [*deltas, Delta("", (END,), self._score(""), FinishReason.STOP, timings=timings(request, len(deltas)))]

    def token(self, word: str) -> int:
        """Its id."""
        if word not in self._words:
            self._words.append(word)
        return 10 + self._words.index(word)

    async def detokenize(self, ids: Sequence[int]) -> str:
        return "".join(self._words[token - 10] for token in ids)

    def _score(self, word: str) -> tuple[TextLogprob, ...]:
        return (TextLogprob(word, word.encode(), self._logprob, ()),)
