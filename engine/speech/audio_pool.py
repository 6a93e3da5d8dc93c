"""Sound is decoded in a process of its own: what a hostile file does to a decoder costs its own request alone."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineFailure, InvalidRequest
from engine.isolation.helper_pool import Answer, Failure, HelperLimits, HelperPool
from engine.processes import module_command
from engine.speech.audio import AudioAnswer, AudioOpening, AudioQuestion
from engine.speech.cutting import Recording

DECODER = tuple(module_command("engine.speech.audio_helper"))
MOST_SECONDS = 7200.0  # of sound in one file: its samples are 230 MB, which one frame holds
LIMITS = HelperLimits(budget_s=300.0, processes=2, opening_s=20.0)
FULL_SCALE = np.float32(1 / 32768)
FIELD = "file"


class AudioPool:
    """All methods belong to one event loop. label: of log lines."""

    def __init__(self, label: str = "", limits: HelperLimits = LIMITS) -> None:
        opening = msgspec.msgpack.encode(AudioOpening(limits.budget_s, MOST_SECONDS))
        self._helpers = HelperPool("the process that decodes sound", DECODER, opening, self._accept, limits, label)
        self._budget_s = limits.budget_s

    async def hear(self, data: bytes, finds_speech: bool) -> Recording:
        """The sound of a file. InvalidRequest naming the field, EngineFailure where packages are missing, Busy."""
        answer = await self._helpers.ask(msgspec.msgpack.encode(AudioQuestion(data, finds_speech)))
        if answer is Failure.DIED:
            raise InvalidRequest("'file' cannot be decoded within the limits of this server.", FIELD)
        if isinstance(answer, Failure):
            raise InvalidRequest(f"'file' cannot be decoded within {self._budget_s:g} s.", FIELD)
        found = msgspec.msgpack.decode(answer, type=AudioAnswer)
        if found.error:
            raise InvalidRequest(f"'file' cannot be used: {found.error}.", FIELD)
        samples: NDArray[np.float32] = np.frombuffer(found.samples, "<i2") * FULL_SCALE
        return Recording(samples, np.frombuffer(found.speech, "<f4"))

    async def close(self) -> None:
        """End every process. May be repeated."""
        await self._helpers.close()

    def _accept(self, answer: Answer) -> None:
        if isinstance(answer, Failure):
            raise EngineFailure(f"The process that decodes sound cannot be used: {answer.value}.")
        if error := msgspec.msgpack.decode(answer, type=AudioAnswer).error:
            raise EngineFailure(f"This server cannot transcribe: {error}.")
