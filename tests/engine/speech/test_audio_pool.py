"""Sound in every container, and files that are none, through the real process that decodes."""

import io
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import av
import numpy as np
import pytest

from engine.errors import InvalidRequest
from engine.isolation.helper_pool import HelperLimits
from engine.speech import live
from engine.speech.live import AudioPool
from engine.speech.log_mel import SAMPLE_RATE

SECONDS = 1.0
HERTZ = 440.0
# container, codec, sample rate
FORMS = (
    ("wav", "pcm_s16le", 16_000),
    ("mp3", "mp3", 44_100),
    ("flac", "flac", 48_000),
    ("ogg", "libopus", 48_000),
    ("webm", "libopus", 48_000),
    ("ipod", "aac", 44_100),
    ("matroska", "aac", 22_050),
    ("mpegts", "mp2", 48_000),
    ("adts", "aac", 16_000),
    ("aiff", "pcm_s16be", 8_000),
    ("au", "pcm_mulaw", 8_000),
)


def written(container: str, codec: str, rate: int, seconds: float = SECONDS) -> bytes:
    """A sine in two channels."""
    place = io.BytesIO()
    with av.open(place, "w", format=container) as output:
        stream = output.add_stream(codec, rate=rate, layout="stereo")
        times = np.arange(int(seconds * rate)) / rate
        samples = (12_000 * np.sin(2 * np.pi * HERTZ * times)).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(np.repeat(samples, 2)[None], format="s16", layout="stereo")
        frame.rate = rate
        resampler = av.AudioResampler(
            stream.format, stream.layout, rate, frame_size=stream.codec_context.frame_size or 0
        )
        for piece in (*resampler.resample(frame), *resampler.resample(None)):
            output.mux(stream.encode(piece))
        output.mux(stream.encode(None))
    return place.getvalue()


@pytest.fixture
async def pool() -> AsyncIterator[AudioPool]:
    made = AudioPool()
    yield made
    await made.close()


@pytest.mark.parametrize(("container", "codec", "rate"), FORMS)
async def test_a_sine_is_heard_from_every_container(container: str, codec: str, rate: int, pool: AudioPool) -> None:
    heard = (await pool.hear(written(container, codec, rate), finds_speech=False)).samples
    assert abs(len(heard) / SAMPLE_RATE - SECONDS) < 0.15  # codecs pad
    spectrum = np.abs(np.fft.rfft(heard * np.hanning(len(heard))))
    assert abs(np.argmax(spectrum) * SAMPLE_RATE / len(heard) - HERTZ) < 2
    assert 0.25 < np.abs(heard).max() < 0.5


def silent_film() -> bytes:
    """A picture, and no stream of sound."""
    place = io.BytesIO()
    with av.open(place, "w", format="matroska") as output:
        stream = output.add_stream("mpeg4", rate=25, width=16, height=16, pix_fmt="yuv420p")
        output.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")))
        output.mux(stream.encode(None))
    return place.getvalue()


async def test_a_film_without_sound_is_told_of(pool: AudioPool) -> None:
    with pytest.raises(InvalidRequest, match=r"^'file' cannot be used: it holds no sound\.$"):
        await pool.hear(silent_film(), finds_speech=False)


async def test_a_helper_that_dies_between_two_files_costs_nobody_anything(pool: AudioPool) -> None:
    sound, lengths = written("wav", "pcm_s16le", 16_000), []
    for _ in range(2):
        lengths.append(len((await pool.hear(sound, finds_speech=False)).samples))
        (helper,) = pool.pids
        os.kill(helper, signal.SIGKILL)
    assert lengths == [SAMPLE_RATE] * 2


MORTAL = """
import os, signal, sys
from engine.isolation.framing import Opened, serve
from engine.speech import audio_helper

def opened(body):
    kept = audio_helper.opened(body)
    return Opened(kept.reply, kept.longest_s, lambda body: os.kill(os.getpid(), signal.SIGKILL))

sys.exit(serve(audio_helper.MEMORY_BYTES, opened))
"""


async def test_a_file_that_kills_its_helpers_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "DECODER", (sys.executable, "-c", MORTAL))
    pool = AudioPool()
    try:
        with pytest.raises(InvalidRequest, match="'file' cannot be decoded within the limits of this server"):
            await pool.hear(b"sound", finds_speech=False)
    finally:
        await pool.close()


LISTED = "listed.opus"
LISTS = {
    "concat": f"ffconcat version 1.0\nfile {LISTED}\n",
    "hls": f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{LISTED}\n#EXT-X-ENDLIST\n",
    "dash": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static"><Period><AdaptationSet>'
    f'<Representation id="1"><BaseURL>{LISTED}</BaseURL></Representation></AdaptationSet></Period></MPD>',
    "sdp": "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
}


@pytest.mark.parametrize("kind", LISTS)
async def test_a_list_of_files_opens_none_of_them(
    kind: str, pool: AudioPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(Path(__file__).parents[2] / "real" / "sounds" / "german.opus", tmp_path / LISTED)
    monkeypatch.chdir(tmp_path)  # the process starts here: the names lead to a file that it could decode
    with pytest.raises(InvalidRequest, match="'file' cannot be used: it is no sound that can be decoded"):
        await pool.hear(LISTS[kind].encode(), finds_speech=False)


STUCK = """
import sys, time
from engine.isolation.framing import Opened, serve
from engine.speech import audio_helper

def opened(body):
    kept = audio_helper.opened(body)
    return Opened(kept.reply, kept.longest_s, lambda body: time.sleep(60) if b"endless" in body else kept.answer(body))

sys.exit(serve(audio_helper.MEMORY_BYTES, opened))
"""


async def test_what_takes_too_long_costs_its_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "DECODER", (sys.executable, "-c", STUCK))
    pool = AudioPool(limits=HelperLimits(budget_s=3.0, processes=1, opening_s=20.0))
    try:
        with pytest.raises(InvalidRequest, match=r"'file' cannot be decoded within 3 s"):
            await pool.hear(b"endless", finds_speech=False)
        assert len((await pool.hear(written("wav", "pcm_s16le", 16_000), finds_speech=False)).samples) == SAMPLE_RATE
    finally:
        await pool.close()
