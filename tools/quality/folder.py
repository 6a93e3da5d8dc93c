"""Checkpoints, their bundles and figures in one folder, made by the commands that users have."""

import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from engine.compile.sources.source import open_source
from engine.demo.location import CALIBRATION, HELD_OUT, demo_folder, shipped_texts
from engine.models.family import read_network
from engine.processes import child_environment, module_command
from tools.llama_cpp.programs import LlamaCpp, run_step
from tools.quality.report import EMULATED, QualityRow
from tools.real_models.fetch import RealModels
from tools.real_models.held_out import held_out_text as held_out_text_of

KEY_LENGTH = 12
Words = tuple[str, ...]
Place = tuple[str, str, str]  # of a row: checkpoint, form, way
HERE = Path(__file__).resolve().parent
ENGINE = HERE.parents[1] / "engine"
SCORERS = (ENGINE / "evaluation",)
COMPILERS = (ENGINE / "compile", HERE / "floats.py")


@dataclass(frozen=True, slots=True)
class Form:
    """How weights are stored.

    options: of `hexserve compile`, none where codes alone are scored. bits: of a weight with its part of the scale.
    head_bits: of one of the LM head. scored: more options of `hexserve eval`.
    """

    options: tuple[str, ...]
    bits: float
    head_bits: float
    takes_calibration: bool = False
    scored: tuple[str, ...] = ()


FORMS = {
    "w4": Form((), 4 + 16 / 32, 8 + 16 / 32),
    "int4": Form(("--quant", "int4"), 4 + 32 / 32, 4 + 32 / 32),
    "w4a16": Form(("--quant", "w4a16", "--rows", "64", "--context", "576"), 4 + 8 / 32, 8.0, takes_calibration=True),
    "w8a16": Form(("--quant", "w8a16", "--rows", "64", "--context", "576"), 8.0, 8.0, takes_calibration=True),
}


# The NPU's own graphs in Qualcomm's emulator, which takes a second for a few tokens.
ON_NPU = ("--target", "x-elite", "--one-graph-per-binary", "--rows", "32", "--context", "256")
FORMS |= {
    f"{quant}{EMULATED}": Form(
        ("--quant", quant, *ON_NPU), bits, 8.0, takes_calibration=True, scored=("--tokens", "512", "--context", "224")
    )
    for quant, bits in (("w4", 4 + 16 / 32), ("w4a16", 4 + 8 / 32), ("w8a16", 8.0))
}


@dataclass(frozen=True, slots=True)
class Subject:
    """A checkpoint, a folder or a GGUF file, with text that it was not trained on, and other text to calibrate on.

    calibration: None = what the compiler takes by itself.
    """

    name: str
    folder: Path
    held_out: Path
    calibration: Path | None

    @property
    def calibration_options(self) -> tuple[str, ...]:
        """Of `hexserve compile`."""
        return () if self.calibration is None else ("--calibration", str(self.calibration))


class QualityFolder:
    """The folder that holds everything, with a method for each thing in it."""

    def __init__(self, folder: Path, say: Callable[[str], None], tokens: int) -> None:
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._say = say
        self._tokens = tokens
        self._references: set[Path] = set()

    def run(self, step: str, command: list[str]) -> None:
        """Run a command under a name. BuildFailed with the last that it printed when it does not succeed."""
        run_step(step, command, self.folder / "log.txt", self._say, child_environment())

    def demo(self) -> Subject:
        """The embedded model and its texts."""
        held_out = self.folder / "demo-held-out.txt"
        held_out.write_text("".join(shipped_texts(HELD_OUT)), encoding="utf-8")
        return Subject("demo", demo_folder(), held_out, CALIBRATION)

    def published(self, name: str, models: RealModels, llama: LlamaCpp) -> Subject:
        """The floats of a published file, which is fetched the first time; scored on text that nobody tunes on.

        Codes of the file would be kept, so every form begins with 16-bit floats of them.
        """
        held_out, floats = self.folder / "held-out.txt", self.folder / f"{name}-f16.gguf"
        held_out.write_text(held_out_text_of(models.fetch("llama-cpp")), encoding="utf-8")
        if not floats.is_file():
            llama.quantised(models.fetch(name), floats.with_suffix(".draft"), "F16").replace(floats)
        return Subject(name, floats, held_out, None)

    def kept(
        self, subject: Subject, place: tuple[str, str, str], made_by: str, measured: Callable[[], QualityRow]
    ) -> QualityRow:
        """A row as an earlier run measured it, else measured now.

        Measured anew when the checkpoint, a text, the scoring or made_by is another: what tells the state of the
        software that quantises.
        """
        texts = files_key(filter(None, (subject.held_out, subject.calibration)))
        key = key_of(checkpoint_key(subject.folder), texts, str(self._tokens), sources_key(*SCORERS), made_by)
        path = self.folder / "rows" / _file_name(*place, key, ".json")
        row = msgspec.json.decode(path.read_bytes(), type=QualityRow) if path.is_file() else None
        if row is None:
            row = measured()
            path.parent.mkdir(exist_ok=True)
            draft = path.with_suffix(".draft")
            draft.write_bytes(msgspec.json.encode(row))
            draft.replace(path)
        return row

    @staticmethod
    def made_here() -> str:
        """Tells the state of this compiler, as `kept` wants it."""
        return sources_key(*COMPILERS)

    def row(self, subject: Subject, name: str, way: str) -> QualityRow:
        """One checkpoint in one form, its codes chosen in one way."""
        form = FORMS[name]
        place = (subject.name, name, way)
        if form.options:
            used = subject.calibration_options if form.takes_calibration or way != "fast" else ()
            bits = bits_of(subject.folder, form)
            return self.scored(subject, place, bits, subject.folder, (*form.options, *used), way, form.scored)
        floats = self.folder / "floats"
        shutil.rmtree(floats, ignore_errors=True)
        command = module_command("tools.quality.floats", str(subject.folder), "-o", str(floats))
        command += ["--quality", way]
        began = time.monotonic()
        self.run(f"{' '.join(place)}: choose codes", [*command, *subject.calibration_options])
        return self.scored_floats(subject, place, bits_of(subject.folder, form), floats, time.monotonic() - began)

    def scored_floats(
        self, subject: Subject, place: tuple[str, str, str], bits: float, source: Path, seconds: float
    ) -> QualityRow:
        """What a folder or GGUF file holds, in float arithmetic."""
        return replace(self.scored(subject, place, bits, source, ("--quant", "fp32"), ""), seconds=seconds)

    def scored(
        self, subject: Subject, place: Place, bits: float, source: Path, options: Words, way: str, scored: Words = ()
    ) -> QualityRow:
        """Compile and score. way: of --quality, '' where there is nothing to choose. scored: as of a form."""
        bundle, figures = self.folder / "bundle", self.folder / "figures" / _file_name(*place, ".json")
        hexserve = [sys.executable, "-m", "server"]
        command = [*hexserve, "compile", str(source), "-o", str(bundle), "--force", *options]
        began = time.monotonic()
        self.run(f"{' '.join(place)}: compile", [*command, *(("--quality", way) if way else ())])
        seconds = time.monotonic() - began
        figures.parent.mkdir(exist_ok=True)
        judged = [*hexserve, "eval", str(bundle), "--text", str(subject.held_out), "--against"]
        judged += [str(self._reference(subject)), "--tokens", str(self._tokens), "--json", str(figures), *scored]
        self.run(f"{' '.join(place)}: score", judged)
        written = json.loads(figures.read_text(encoding="utf-8"))["models"][0]["quality"]
        return QualityRow.of(place, bits, seconds, written)

    def _reference(self, subject: Subject) -> Path:
        """The float checkpoint as a bundle, compiled once a run: much faster than its definition, and checked by it."""
        bundle = self.folder / _file_name(subject.name, checkpoint_key(subject.folder), "fp32")
        if bundle not in self._references:
            compile_it = [sys.executable, "-m", "server", "compile", str(subject.folder), "-o", str(bundle), "--force"]
            self.run(f"{subject.name}: compile", [*compile_it, "--quant", "fp32"])
            self._references.add(bundle)
        return bundle


def bits_of(folder: Path, form: Form) -> float:
    """Bits a weight of the linear layers and the head of a checkpoint take on average."""
    network = read_network(open_source(folder).config)
    spec = network.spec
    head = spec.vocab * spec.hidden
    layers = spec.layers * spec.hidden * (2 * network.query_width + 2 * network.key_width + 3 * spec.ffn)
    return float((layers * form.bits + head * form.head_bits) / (layers + head))


def _file_name(*words: str) -> str:
    return "-".join(words).replace(" ", "-").replace("-.", ".")


def key_of(*parts: str) -> str:
    """A few characters that are others when any part is."""
    digests = b"".join(hashlib.sha256(part.encode()).digest() for part in parts)
    return hashlib.sha256(digests).hexdigest()[:KEY_LENGTH]


def checkpoint_key(folder: Path) -> str:
    """Tells one state of a checkpoint, a folder or a GGUF file, from another."""
    return files_key([folder] if folder.is_file() else sorted(folder.glob("*.safetensors")))


def sources_key(*places: Path) -> str:
    """Tells one state of Python sources from another. places: files, and folders with all that is below them."""
    return files_key(each for place in places for each in (sorted(place.rglob("*.py")) if place.is_dir() else [place]))


def files_key(files: Iterable[Path]) -> str:
    """Tells one state of files from another."""
    found = hashlib.sha256()
    for path in files:
        with path.open("rb") as stream:
            found.update(hashlib.file_digest(stream, "sha256").digest())
    return found.hexdigest()[:KEY_LENGTH]
