"""Speech whose words are known: texts that espeak-ng and flite read aloud, and the prompts of a package of Debian."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.speech.audio_helper import decoded
from tools.real_models.debian import TEXTS as SAID
from tools.real_models.debian import fetch_recordings, seconds_of

TEXTS = Path(__file__).parent / "texts.txt"
VOICES = {
    "espeak-ng": ["espeak-ng", "-v", "en-us", "-s", "150", "-w"],
    "flite slt": ["flite", "-voice", "slt", "-o"],
    "flite rms": ["flite", "-voice", "rms", "-o"],
}


class NoVoice(Exception):
    """A program that speaks is missing; the message names it."""


@dataclass(frozen=True, slots=True)
class ReadAloud:
    """A WAV file, what is said in it, its length in seconds, and its language."""

    path: Path
    text: str
    seconds: float
    language: str = "en"

    @property
    def samples(self) -> NDArray[np.float32]:
        """16,000 a second, from -1 to 1."""
        heard = np.frombuffer(decoded(self.path.read_bytes(), self.seconds + 1), "<i2")
        return heard.astype(np.float32) / np.float32(32768)


def recordings(folder: Path) -> list[ReadAloud]:
    """Each paragraph by each voice, then all of them by each: a long one. Raises NoVoice."""
    lines = TEXTS.read_text(encoding="utf-8").splitlines()
    folder.mkdir(parents=True, exist_ok=True)
    made = [_spoken(folder, voice, str(number), line) for number, line in enumerate(lines) for voice in VOICES]
    return made + [_spoken(folder, voice, "long", " ".join(lines)) for voice in VOICES]


def recordings_of_people(folder: Path, language: str = "en") -> list[ReadAloud]:
    """Of one person, 8,000 samples a second, fetched into a folder of real models: 60 or more, 4 s on. FetchFailed."""
    place = fetch_recordings(folder, language)
    said: dict[str, str] = json.loads((place / SAID).read_text(encoding="utf-8"))
    return [ReadAloud(place / name, text, seconds_of(place / name), language) for name, text in said.items()]


def _spoken(folder: Path, voice: str, name: str, text: str) -> ReadAloud:
    command, path = VOICES[voice], folder / f"{voice.replace(' ', '-')}-{name}.wav"
    if shutil.which(command[0]) is None:
        raise NoVoice(f"{command[0]} is missing: it is a package of Debian")
    if not path.exists():
        said: Sequence[str] = [text] if command[0] == "espeak-ng" else ["-t", text]
        subprocess.run([*command, str(path), *said], check=True)
    return ReadAloud(path, text, seconds_of(path))
