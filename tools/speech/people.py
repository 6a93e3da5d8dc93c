"""Speech of a person whose words are known: the prompts that a package of Debian holds, at 8,000 samples a second."""

import json
import wave
from pathlib import Path

from tools.real_models.debian import TEXTS, fetch_recordings
from tools.speech.recordings import ReadAloud


def recordings_of_people(folder: Path) -> list[ReadAloud]:
    """Fetched into a folder of real models, 65 of 4 to 73 s. FetchFailed."""
    place = fetch_recordings(folder)
    texts: dict[str, str] = json.loads((place / TEXTS).read_text(encoding="utf-8"))
    return [_recorded(place / name, text) for name, text in texts.items()]


def _recorded(path: Path, text: str) -> ReadAloud:
    with wave.open(str(path)) as file:
        return ReadAloud(path, text, file.getnframes() / file.getframerate())
