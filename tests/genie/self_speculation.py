"""libGenie with a dialog of type ssd-q1, which takes text only (its tokenQuery fails with -6).

`python -m tests.genie.self_speculation BUNDLE TEXTS.json ANSWERS.json COUNT` runs in a process of its own.
"""

import ctypes
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from engine.processes import child_environment, module_command
from tools.proofs.genie_reference import EXECUTED, GREEDY, SENTENCE_COMPLETE, Genie, search_path

ACCEPTED = re.compile(rb"accepted counts: \[([\d, ]+)\]")


@dataclass(frozen=True)
class Speculated:
    """For each text what followed, and how many steps gave 0, 1, 2 ... guessed tokens. steps: of all texts."""

    answers: list[str]
    accepted: list[list[int]]
    steps: int


def speculate(bundle: Path, texts: list[str], count: int, scratch: Path) -> Speculated:
    """Greedy answers of at most so many tokens, each on an empty cache."""
    asked, answered = scratch / "texts.json", scratch / "answers.json"
    asked.write_text(json.dumps(texts))
    paths = (str(path.resolve()) for path in (bundle, asked, answered))
    command = module_command("tests.genie.self_speculation", *paths, str(count))
    environment = child_environment(search_path())
    done = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    accepted = [[int(number) for number in found.split(b",")] for found in ACCEPTED.findall(done.stdout)]
    return Speculated(json.loads(answered.read_text()), accepted, len(EXECUTED.findall(done.stdout)))


class TextGenie(Genie):
    """The same library, asked with text."""

    def answer(self, text: str, count: int) -> str:
        """What follows a text, on a fresh dialog."""
        said: list[bytes] = []
        kind = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p)
        callback = kind(lambda piece, code, user: said.append(piece or b""))
        self._check("reset", self._library.GenieDialog_reset(self._dialog))
        self._library.GenieDialog_setMaxNumTokens.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        self._check("limit", self._library.GenieDialog_setMaxNumTokens(self._dialog, count))
        query = self._library.GenieDialog_query
        query.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, kind, ctypes.c_void_p]
        self._check("query", query(self._dialog, text.encode(), SENTENCE_COMPLETE, callback, None))
        return b"".join(said).decode()


def main(bundle: Path, texts: Path, answers: Path, count: int) -> None:
    """Ask one after the other, from inside the bundle."""
    asked = json.loads(texts.read_text())
    os.chdir(bundle)
    config = json.loads(Path("genie_config.json").read_text())
    config["dialog"]["sampler"] = GREEDY
    genie = TextGenie(json.dumps(config))
    answers.write_text(json.dumps([genie.answer(text, count) for text in asked]))
    sys.stdout.flush()
    os._exit(0)  # the emulator's threads outlive the dialog


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), int(sys.argv[4]))
