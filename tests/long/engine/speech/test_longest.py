"""Two hours of sound are heard, a second more is told of."""

import io
import wave
from contextlib import AsyncExitStack

import pytest

from engine.errors import InvalidRequest
from engine.speech.live import AudioPool

HOURS_2 = 7200
RATE = 1000


def silence(seconds: int) -> bytes:
    """A WAV file with a byte for each sample."""
    place = io.BytesIO()
    with wave.open(place, "wb") as file:
        file.setparams((1, 1, RATE, 0, "NONE", "none"))
        file.writeframes(bytes([128]) * RATE * seconds)
    return place.getvalue()


async def test_two_hours_are_heard_and_no_more() -> None:
    pool = AudioPool()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(pool.close)
        assert (await pool.hear(silence(HOURS_2), finds_speech=False)).seconds == HOURS_2
        with pytest.raises(InvalidRequest, match=r"^'file' cannot be used: it is longer than 7200 s\.$"):
            await pool.hear(silence(HOURS_2 + 1), finds_speech=False)
