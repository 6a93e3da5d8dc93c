"""Speech whose words are known: texts that espeak-ng and flite read aloud."""

import shutil
import subprocess
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    """A WAV file, what is said in it, and its length in seconds."""

    path: Path
    text: str
    seconds: float


def recordings(folder: Path) -> list[ReadAloud]:
    """Each paragraph by each voice, then all of them by each: a long one. Raises NoVoice."""
    lines = TEXTS.read_text(encoding="utf-8").splitlines()
    folder.mkdir(parents=True, exist_ok=True)
    made = [_spoken(folder, voice, str(number), line) for number, line in enumerate(lines) for voice in VOICES]
    return made + [_spoken(folder, voice, "long", " ".join(lines)) for voice in VOICES]


def _spoken(folder: Path, voice: str, name: str, text: str) -> ReadAloud:
    command, path = VOICES[voice], folder / f"{voice.replace(' ', '-')}-{name}.wav"
    if shutil.which(command[0]) is None:
        raise NoVoice(f"{command[0]} is missing: it is a package of Debian")
    if not path.exists():
        said: Sequence[str] = [text] if command[0] == "espeak-ng" else ["-t", text]
        subprocess.run([*command, str(path), *said], check=True)
    with wave.open(str(path)) as file:
        return ReadAloud(path, text, file.getnframes() / file.getframerate())
