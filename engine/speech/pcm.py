"""Sound as clients send it live, made into 16,000 samples a second while it comes."""

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from engine.speech.log_mel import SAMPLE_RATE

Float32 = NDArray[np.float32]
Int16 = NDArray[np.int16]
REACH = 32  # samples on each side that a new one is made of


class SoundFormat(StrEnum):
    """Mono: signed 16 bit, little-endian, 24,000 a second, or 8 bit of ITU-T G.711, 8,000 a second."""

    PCM16 = "pcm16"
    ULAW = "g711_ulaw"
    ALAW = "g711_alaw"

    @property
    def rate(self) -> int:
        """Samples a second."""
        return 24_000 if self is SoundFormat.PCM16 else 8_000

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return 2 if self is SoundFormat.PCM16 else 1


def samples_of(data: bytes, form: SoundFormat) -> Int16:
    """Whole samples as numbers of 16 bit."""
    match form:
        case SoundFormat.PCM16:
            return np.frombuffer(data, "<i2")
        case SoundFormat.ULAW:
            return _ulaw(np.frombuffer(data, np.uint8))
        case SoundFormat.ALAW:
            return _alaw(np.frombuffer(data, np.uint8))


def _ulaw(codes: NDArray[np.uint8]) -> Int16:
    bits = ~codes
    exponent, mantissa = (bits >> 4) & 7, (bits & 15).astype(np.int32)
    sizes = (((mantissa << 3) + 132) << exponent) - 132
    return np.where(bits & 128, -sizes, sizes).astype(np.int16)


def _alaw(codes: NDArray[np.uint8]) -> Int16:
    bits = codes ^ 0x55
    exponent, mantissa = ((bits >> 4) & 7).astype(np.int32), (bits & 15).astype(np.int32)
    sizes = (mantissa << 4) + 8
    sizes = np.where(exponent > 0, (sizes + 256) << np.maximum(exponent - 1, 0), sizes)
    return np.where(bits & 128, sizes, -sizes).astype(np.int16)


class Resampler:
    """From `rate` to 16,000 samples a second by a windowed sinc; what it knows of the sound goes on with the next call.

    Two samples are made for each `step` of the given ones, the first of them in its place and the second between.
    """

    def __init__(self, rate: int) -> None:
        self._step = 2 * rate // SAMPLE_RATE
        places = np.arange(-REACH, REACH + 2, dtype=np.float64)
        self._taps = np.stack([_sinc(phase * self._step / 2 - places, rate) for phase in (0, 1)], axis=1)
        self._rest = np.zeros(REACH, np.float32)

    def take(self, samples: Int16) -> Int16:
        """The next samples; as many as are settled by what came."""
        known = np.concatenate([self._rest, samples.astype(np.float32)])
        width, step = len(self._taps), self._step
        count = max(0, (len(known) - width) // step + 1)
        self._rest = known[count * step :]
        if not count:
            return np.zeros(0, np.int16)
        cut = np.lib.stride_tricks.sliding_window_view(known, width)[::step][:count]
        return np.clip(np.rint(cut @ self._taps), -32768, 32767).astype(np.int16).ravel()


def _sinc(offsets: NDArray[np.float64], rate: int) -> Float32:
    """Low-pass at half the lower rate; a Hann window over the reach; the sum is 1."""
    share = min(1.0, SAMPLE_RATE / rate)
    window = np.where(np.abs(offsets) < REACH, 0.5 + 0.5 * np.cos(np.pi * offsets / REACH), 0.0)
    taps = np.sinc(share * offsets) * window
    return np.asarray(taps / taps.sum(), np.float32)
