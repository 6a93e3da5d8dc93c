"""Log-mel frames of sound, as Whisper reads them (Radford et al. 2022, s. 2.2).

Sound is mono, 16,000 samples a second. Frames are 25 ms wide, one each 10 ms, under a Hann window; their powers go
through triangular filters on the mel scale of Slaney's Auditory Toolbox (1998), each of area 1.
"""

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
    bands = (np.maximum(bands, bands.max() - RANGE) + 4.0) / 4.0
    return np.ascontiguousarray(bands.T, np.float32)


@lru_cache(maxsize=4)
def filters(mels: int) -> NDArray[np.float64]:
    """[mels, 201]: how much of each frequency a band holds."""
    edges = _hertz(np.linspace(0.0, _mels(SAMPLE_RATE / 2), mels + 2))
    frequencies = np.linspace(0.0, SAMPLE_RATE / 2, WINDOW // 2 + 1)
    widths = np.diff(edges)
    rising = -(edges[:-2, None] - frequencies) / widths[:-1, None]
    falling = (edges[2:, None] - frequencies) / widths[1:, None]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return np.asarray(triangles * (2.0 / (edges[2:] - edges[:-2]))[:, None])


def _mels(hertz: float) -> float:
    break_hz = LINEAR_HZ * LINEAR_MELS
    if hertz < break_hz:
        return hertz / LINEAR_HZ
    return float(LINEAR_MELS + np.log(hertz / break_hz) / LOG_STEP)


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    break_hz = LINEAR_HZ * LINEAR_MELS
    return np.where(mels < LINEAR_MELS, mels * LINEAR_HZ, break_hz * np.exp(LOG_STEP * (mels - LINEAR_MELS)))
