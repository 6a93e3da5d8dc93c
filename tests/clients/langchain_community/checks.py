"""langchain-community's parser of recordings, which cuts them with FFmpeg and sends the parts as MP3."""

# servers: hears

import io
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import openai
from checking import base_url, check, run
from imageio_ffmpeg import get_ffmpeg_exe
from langchain_community.document_loaders.parsers.audio import OpenAIWhisperParser
from langchain_core.documents.base import Blob
from pydub import AudioSegment
from pydub.generators import WhiteNoise

AudioSegment.converter = get_ffmpeg_exe()


def client() -> openai.OpenAI:
    return openai.OpenAI(base_url=base_url("hears"))


def parsed(**given: Any) -> tuple[str, str]:
    """What the parser writes of two seconds of noise, and what openai-python gets for the same MP3."""
    model = next(iter(client().models.list())).id
    sound = WhiteNoise(sample_rate=16_000).to_audio_segment(2000, volume=-12)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "noise.wav"
        sound.export(path, format="wav")
        parser = OpenAIWhisperParser(base_url=base_url("hears"), model=model, **given)
        [document] = parser.parse(Blob.from_path(path))
        sent = io.BytesIO(AudioSegment.from_file(path).export(format="mp3").read())
        assert document.metadata == {"source": str(path), "chunk": 0}
    sent.name = "noise.mp3"
    wanted = client().audio.transcriptions.create(file=sent, model=model, **given)
    return document.page_content, wanted if isinstance(wanted, str) else wanted.text


@check
def a_recording_becomes_a_document() -> None:
    found, wanted = parsed()
    assert found and found == wanted, (found, wanted)


@check
def every_field_is_taken() -> None:
    found, wanted = parsed(language="de", prompt="abc", temperature=0.0, response_format="srt")
    assert " --> " in found and found == wanted, (found, wanted)
    whole, same = parsed(language="de", response_format="verbose_json")
    assert whole and whole == same


if __name__ == "__main__":
    run()
