"""Recorded speech as a live client sends it."""

from pathlib import Path

import av

SOUNDS = Path(__file__).parent / "sounds"


def write_pcm(name: str, file: Path, seconds: float = 600.0) -> Path:
    """The beginning of a recording as signed 16 bit at 24 kHz."""
    resampler = av.AudioResampler(format="s16", layout="mono", rate=24_000)
    with av.open(str(SOUNDS / name)) as container:
        frames = [made for frame in container.decode(audio=0) for made in resampler.resample(frame)]
    data = b"".join(frame.to_ndarray().tobytes() for frame in frames)
    file.write_bytes(data[: round(seconds * 24_000) * 2])
    return file
