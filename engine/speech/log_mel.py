"""Log-mel frames of sound, as Whisper reads them (Radford et al. 2022, s. 2.2).
Sound is mono, 16,000 samples a second. Frames are 25 ms wide, one each 10 ms, under a Hann window; their powers go
through triangular filters on the mel scale of Slaney's Auditory Toolbox (1998), each of area 1."""

from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
SAMPLE_RATE, WINDOW, HOP = 16_000, 400, 160
LEAST_POWER, RANGE = 1e-10, 8.0  # decades below the loudest frame that count
LINEAR_HZ, LINEAR_MELS = 200.0 / 3, 15.0  # up to 1,000 Hz; logarithmic above
LOG_STEP = np.log(6.4) / 27.0


def log_mel(samples: Float32, mels: int, frames: int) -> Float32:
    """samples [at most frames * 160], -1 to 1 -> [mels, frames]; what is missing is silence."""
    wanted = frames * HOP
    padded = np.zeros(wanted, np.float64)
    padded[: len(samples)] = samples[:wanted]
    mirrored = np.pad(padded, WINDOW // 2, mode="reflect")
    window = np.hanning(WINDOW + 1)[:-1]
    cut = np.lib.stride_tricks.sliding_window_view(mirrored, WINDOW)[::HOP][:frames]
    powers = np.abs(np.fft.rfft(cut * window, axis=1)) ** 2
    bands = np.log10(np.maximum(powers @ filters(mels).T, LEAST_POWER))
    return np.ascontiguousarray((np.maximum(bands, bands.max() - RANGE).T + 4.0) / 4.0, np.float32)


@lru_cache(maxsize=4)
def filters(mels: int) -> NDArray[np.float64]:
    """[mels, 201]: how much of each frequency a band holds."""
    break_hz = LINEAR_HZ * LINEAR_MELS
    most = LINEAR_MELS + np.log(SAMPLE_RATE / 2 / break_hz) / LOG_STEP
    scale = np.linspace(0.0, most, mels + 2)
    edges = np.where(scale < LINEAR_MELS, scale * LINEAR_HZ, break_hz * np.exp(LOG_STEP * (scale - LINEAR_MELS)))
    frequencies = np.linspace(0.0, SAMPLE_RATE / 2, WINDOW // 2 + 1)
    widths = np.diff(edges)
    rising = -(edges[:-2, None] - frequencies) / widths[:-1, None]
    falling = (edges[2:, None] - frequencies) / widths[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return np.asarray(triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None])


Int16 = NDArray[np.int16]
REACH = 32  # samples on each side that a new one is made of


class SoundFormat(StrEnum):
    """Mono: signed 16 bit, little-endian, 24,000 a second, or 8 bit of ITU-T G.711, 8,000 a second."""

    PCM16 = "pcm16"
    ULAW = "g711_ulaw"
    ALAW = "g711_alaw"

    @property
    def rate(self) -> int:
        return 24_000 if self is SoundFormat.PCM16 else 8_000

    @property
    def sample_bytes(self) -> int:
        return 2 if self is SoundFormat.PCM16 else 1


def samples_of(data: bytes, form: SoundFormat) -> Int16:
    """Whole samples as numbers of 16 bit."""
    if form is SoundFormat.PCM16:
        return np.frombuffer(data, "<i2")
    return (_ulaw if form is SoundFormat.ULAW else _alaw)(np.frombuffer(data, np.uint8))


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
    Two samples are made for each `step` of the given ones, the first of them in its place and the second between. In
    float64: sums of float32 depend on how many a BLAS makes at once, and pieces would differ from the whole."""

    def __init__(self, rate: int) -> None:
        self._step = 2 * rate // SAMPLE_RATE
        places = np.arange(-REACH, REACH + 2, dtype=np.float64)
        self._taps = np.stack([_sinc(phase * self._step / 2 - places, rate) for phase in (0, 1)], axis=1)
        self._rest = np.zeros(REACH)

    def take(self, samples: Int16) -> Int16:
        """The next samples; as many as are settled by what came."""
        known = np.concatenate([self._rest, samples.astype(np.float64)])
        width, step = len(self._taps), self._step
        count = max(0, (len(known) - width) // step + 1)
        self._rest = known[count * step :]
        if not count:
            return np.zeros(0, np.int16)
        cut = np.lib.stride_tricks.sliding_window_view(known, width)[::step][:count]
        return np.clip(np.rint(cut @ self._taps), -32768, 32767).astype(np.int16).ravel()


def _sinc(offsets: NDArray[np.float64], rate: int) -> NDArray[np.float64]:
    """Low-pass at half the lower rate; a Hann window over the reach; the sum is 1."""
    share = min(1.0, SAMPLE_RATE / rate)
    window = np.where(np.abs(offsets) < REACH, 0.5 + 0.5 * np.cos(np.pi * offsets / REACH), 0.0)
    taps = np.sinc(share * offsets) * window
    return np.asarray(taps / taps.sum())
