"""What is asked of the process that decodes sound, and what it answers: MessagePack, as frames of a helper."""

import msgspec

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

    speech: for each 512 samples the probability that somebody speaks, float32.
    """

    error: str = ""
    samples: bytes = b""
    speech: bytes = b""
