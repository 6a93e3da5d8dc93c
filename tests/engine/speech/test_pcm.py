"""Sound of three formats becomes 16,000 samples a second, whatever pieces it comes in."""

from itertools import pairwise

import av
import numpy as np
import pytest

from engine.speech.log_mel import Resampler, SoundFormat, samples_of


def sine(hertz: float, rate: int, seconds: float = 0.5) -> np.ndarray:
    return np.rint(10_000 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.int16)


@pytest.mark.parametrize(("rate", "hertz"), [(24_000, 440), (24_000, 6_000), (8_000, 440), (8_000, 3_000)])
def test_a_tone_stays_a_tone_in_its_place(rate: int, hertz: int) -> None:
    made = Resampler(rate).take(sine(hertz, rate)).astype(int)
    middle = slice(200, len(made) - 200)
    assert 0.49 < len(made) / 16_000 < 0.5
    assert np.abs(made - sine(hertz, 16_000).astype(int)[: len(made)])[middle].max() < 60


def test_what_16_khz_cannot_hold_is_gone() -> None:
    made = Resampler(24_000).take(sine(10_000, 24_000)).astype(int)
    assert np.abs(made[200:-200]).max() < 50


@pytest.mark.parametrize("rate", [24_000, 8_000])
def test_pieces_of_any_size_are_the_whole(rate: int) -> None:
    noise = np.random.default_rng(0).integers(-9000, 9000, 5_000).astype(np.int16)
    whole, piecewise = Resampler(rate).take(noise), Resampler(rate)
    cuts = [0, 1, 2, 3, 50, 51, 700, 2_999, 5_000]
    made = [piecewise.take(noise[start:end]) for start, end in pairwise(cuts)]
    assert np.array_equal(np.concatenate(made), whole)


@pytest.mark.parametrize(("form", "codec"), [(SoundFormat.ULAW, "pcm_mulaw"), (SoundFormat.ALAW, "pcm_alaw")])
def test_g711_as_ffmpeg_decodes_it(form: SoundFormat, codec: str) -> None:
    codes = bytes(range(256))
    decoder = av.CodecContext.create(codec, "r")
    decoder.sample_rate, decoder.layout = 8_000, "mono"
    [frame] = decoder.decode(av.Packet(codes))
    assert samples_of(codes, form).tolist() == frame.to_ndarray().ravel().tolist()


def test_pcm16_is_little_endian() -> None:
    assert samples_of(b"\x01\x00\xff\xff", SoundFormat.PCM16).tolist() == [1, -1]
    assert (SoundFormat.PCM16.rate, SoundFormat.PCM16.sample_bytes, SoundFormat.ULAW.sample_bytes) == (24_000, 2, 1)
