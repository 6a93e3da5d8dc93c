"""Measure with llama-perplexity what files of a model lose against floats.

The floats of a file are its weights as llama-quantize makes F32 of them, computed with float32 caches and without flash
attention. The file itself is computed as llama.cpp does by default, with float16 caches.
"""

import shlex
import struct
import subprocess
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from tools.llama_cpp.figures import Fidelity, LlamaFigures, fidelity_in
from tools.llama_cpp.programs import BuildFailed, LlamaCpp
from tools.real_models.held_out import SHA256

CONTEXT, WINDOWS, HALFWAY = 512, 32, 16
SCORED = CONTEXT // 2 - 1  # what follows the positions of a window's second half
WINDOW = ("-c", str(CONTEXT), "-b", str(CONTEXT), "-ub", str(CONTEXT))
QUANTIZE = "llama-quantize --allow-requantize {file} {made} {kind}"
FLOATS = f"llama-perplexity -m {{floats}} {shlex.join(WINDOW)} -ctk f32 -ctv f32 -fa off -f {{text}} " + (
    f"--chunks {WINDOWS} --save-all-logits {{logits}}"
)
SCORES = f"llama-perplexity -m {{file}} {shlex.join(WINDOW)} -ctk f16 -ctv f16 " + (
    "--kl-divergence --kl-divergence-base {logits}"
)
PUBLISHED = "published"
OWN_FLOATS = ("Q4_0", "Q8_0", "F16")  # each made of the published file and held against its own floats
ROUNDED = ("Q4_0", "Q4_K_M")  # made of the published file and held against that file's floats
MAGIC, HEADER = b"_logits_", struct.Struct("<iii")  # tokens of a window, of the vocabulary, windows
TRIES = 3


class FidelityFailed(Exception):
    """A program failed or printed something else; the message names it."""


class Measurement:
    """Of one model. folder: gets a few GB, of which nothing stays. say: told each command as it begins."""

    def __init__(
        self, name: str, published: Path, programs: LlamaCpp, folder: Path, say: Callable[[str], None]
    ) -> None:
        self.name, self._published = name, published
        self._programs = programs
        self._folder = folder
        self._say = say
        self.tokens = ""

    def run(self, text: Path) -> list[Fidelity]:
        """Every file of the model beside floats. FidelityFailed when a step fails."""
        self._folder.mkdir(parents=True, exist_ok=True)
        logits = self._logits(self._published, text)
        self.tokens = tokens_of(logits)
        found = [self._scored(self._published, logits, PUBLISHED, "own")]
        found += [self._scored(self._made(kind), logits, kind, PUBLISHED) for kind in ROUNDED]
        for kind in OWN_FLOATS:
            made = self._made(kind)
            found.append(self._scored(made, self._logits(made, text), kind, "own"))
        for path in self._folder.iterdir():
            path.unlink()
        return found

    def _made(self, kind: str) -> Path:
        made = self._folder / f"{kind}.gguf"
        if not made.is_file():
            self._run(QUANTIZE, file=self._published, made=made, kind=kind)
        return made

    def _logits(self, file: Path, text: Path) -> Path:
        floats, logits = self._folder / "floats.gguf", self._folder / "floats.logits"
        self._run(QUANTIZE, file=file, made=floats, kind="F32")
        self._run(FLOATS, floats=floats, text=text, logits=logits)
        return logits

    def _scored(self, file: Path, logits: Path, kind: str, floats: str) -> Fidelity:
        place = self.name, kind, floats
        for _ in range(TRIES - 1):  # its log can lose its last lines
            with suppress(ValueError):
                return fidelity_in(self._run(SCORES, file=file, logits=logits), place, HALFWAY)
        try:
            return fidelity_in(self._run(SCORES, file=file, logits=logits), place, HALFWAY)
        except ValueError as error:
            raise FidelityFailed(f"{kind} of {self.name}: {error}") from None

    def _run(self, template: str, **places: Path | str) -> str:
        name, *words = template.split()
        command = [str(self._programs.program(name)), *(word.format(**places) for word in words)]
        self._say(shlex.join(command))
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise FidelityFailed(f"{name} failed: {' '.join((done.stdout + done.stderr).split()[-60:])}")
        return done.stdout + done.stderr


def measured(measurements: list[Measurement], text: Path, version: str) -> LlamaFigures:
    """All models. version: of the package that has llama.cpp's sources. FidelityFailed when a step fails."""
    try:
        found = [each for measurement in measurements for each in measurement.run(text)]
    except BuildFailed as error:
        raise FidelityFailed(str(error)) from None
    tokens = {each.name: each.tokens for each in measurements}
    commands = {"make": QUANTIZE, "floats": FLOATS, "scores": SCORES}
    return LlamaFigures(version, commands, SHA256, CONTEXT, WINDOWS, SCORED, tokens, tuple(found))


def tokens_of(logits: Path) -> str:
    """SHA-256 of the token ids that llama-perplexity read. FidelityFailed when it did not write the file."""
    with logits.open("rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            raise FidelityFailed(f"{logits} was not written by llama-perplexity")
        context, _, count = HEADER.unpack(stream.read(HEADER.size))
        return sha256(stream.read(4 * context * count)).hexdigest()
