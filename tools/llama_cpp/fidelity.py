"""Measure with llama-perplexity what files of a model lose against floats.

The floats of a file are its weights as llama-quantize makes F32 of them, computed with float32 caches and without flash
attention. The file itself is computed as llama.cpp does by default, with float16 caches.
"""

import shlex
import shutil
import struct
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec

from tools.llama_cpp.figures import Fidelity, LlamaFigures, fidelity_in
from tools.llama_cpp.programs import BuildFailed, LlamaCpp
from tools.real_models.held_out import SHA256

CONTEXT, WINDOWS, BEGINNING = 512, 32, 2  # of the first windows a figure is also kept alone
QUANTIZE = "llama-quantize --allow-requantize {file} {made} {kind}"
FLOATS = "-ctk f32 -ctv f32 -fa off -f {text}"
SCORES = "-ctk f16 -ctv f16 --kl-divergence --kl-divergence-base {logits}"
PUBLISHED, OWN = "published", "own"
PUBLISHED_ALONE = ("gemma",)  # of these models no other files are made
# Kind of file and whose floats: those that are made of the published file are held against both.
PLACES = (
    *((PUBLISHED, OWN), ("Q4_0", PUBLISHED), ("Q4_K_M", PUBLISHED)),
    *(("Q4_0", OWN), ("Q8_0", OWN), ("F16", OWN)),
)
MAGIC, HEADER = b"_logits_", struct.Struct("<iii")  # tokens of a window, of the vocabulary, windows
TRIES = 3
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ReadWindows:
    """So many windows of `context` tokens, the second half of each scored. Long ones are computed in parts of 512."""

    context: int = CONTEXT
    count: int = WINDOWS

    @property
    def scored(self) -> int:
        """What follows the positions of a window's second half."""
        return self.context // 2 - 1

    @property
    def floats(self) -> str:
        """The command that predicts with floats."""
        kept = f"--chunks {self.count} --save-all-logits {{logits}}"
        return f"llama-perplexity -m {{floats}} {self._size} {FLOATS} {kept}"

    @property
    def scores(self) -> str:
        """The command that holds a file against them."""
        return f"llama-perplexity -m {{file}} {self._size} {SCORES}"

    @property
    def _size(self) -> str:
        part = min(self.context, CONTEXT)
        return f"-c {self.context} -b {part} -ub {part}"


class Measurement:
    """Of one model. folder: gets 3 GB, of which nothing stays; what a broken run has measured there is used again.

    say: told each command as it begins.
    """

    def __init__(
        self, name: str, file: Path, programs: LlamaCpp, folder: Path, say: Say, windows: ReadWindows = ReadWindows()
    ) -> None:
        self.name, self._published, self._windows = name, file, windows
        self._programs, self._folder, self._say = programs, folder, say
        self._logits_of = ""

    def run(self, text: Path) -> tuple[str, list[Fidelity]]:
        """SHA-256 of the text's tokens, and every file of the model beside floats. BuildFailed when a step fails."""
        self._folder.mkdir(parents=True, exist_ok=True)
        tokens, found = self._folder / "tokens", []
        for kind, floats in PLACES[:1] if self.name in PUBLISHED_ALONE else PLACES:
            stored = self._folder / f"{kind}-{floats}.json"
            if not stored.is_file():
                logits = self._logits(PUBLISHED if floats == PUBLISHED else kind, text)
                tokens.write_text(tokens_of(logits))
                stored.write_bytes(msgspec.json.encode(self._scored(kind, floats, logits)))
            found.append(msgspec.json.decode(stored.read_bytes(), type=Fidelity))
        of_tokens = tokens.read_text()
        shutil.rmtree(self._folder)
        return of_tokens, found

    def one(self, text: Path, kind: str, floats: str) -> Fidelity:
        """A single figure; nothing is stored. BuildFailed when a step fails."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._scored(kind, floats, self._logits(PUBLISHED if floats == PUBLISHED else kind, text))

    def _file(self, kind: str) -> Path:
        if kind == PUBLISHED:
            return self._published
        made = self._folder / f"{kind}.gguf"
        self._run(QUANTIZE, file=self._published, made=made, kind=kind)
        return made

    def _logits(self, kind: str, text: Path) -> Path:
        """The predictions of a file's floats."""
        floats, logits = self._folder / "floats.gguf", self._folder / "floats.logits"
        if kind != self._logits_of:
            self._run(QUANTIZE, file=self._file(kind), made=floats, kind="F32")
            self._run(self._windows.floats, floats=floats, text=text, logits=logits)
            self._logits_of = kind
        return logits

    def _scored(self, kind: str, floats: str, logits: Path) -> Fidelity:
        file, place, beginning = self._file(kind), (self.name, kind, floats), min(BEGINNING, self._windows.count)
        said = ""
        for _ in range(TRIES):  # its log can lose its last lines
            try:
                return fidelity_in(self._run(self._windows.scores, file=file, logits=logits), place, beginning)
            except ValueError as error:
                said = str(error)
        raise BuildFailed(f"{kind} of {self.name}: {said}")

    def _run(self, template: str, **places: Path | str) -> str:
        name, *words = template.split()
        command = [str(self._programs.program(name)), *(word.format(**places) for word in words)]
        self._say(shlex.join(command))
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise BuildFailed(f"{name} failed: {' '.join((done.stdout + done.stderr).split()[-60:])}")
        return done.stdout + done.stderr


def measured(measurements: list[Measurement], text: Path, version: str) -> LlamaFigures:
    """All models. version: of the package that has llama.cpp's sources. BuildFailed when a step fails."""
    runs = {each.name: each.run(text) for each in measurements}
    windows = ReadWindows()
    commands = {"make": QUANTIZE, "floats": windows.floats, "scores": windows.scores}
    tokens = {name: of_tokens for name, (of_tokens, _) in runs.items()}
    found = tuple(each for _, fidelity in runs.values() for each in fidelity)
    return LlamaFigures(version, commands, SHA256, CONTEXT, WINDOWS, windows.scored, tokens, found)


def tokens_of(logits: Path) -> str:
    """SHA-256 of the token ids that llama-perplexity read. BuildFailed when it did not write the file."""
    with logits.open("rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            raise BuildFailed(f"{logits} was not written by llama-perplexity")
        context, _, count = HEADER.unpack(stream.read(HEADER.size))
        return sha256(stream.read(4 * context * count)).hexdigest()
