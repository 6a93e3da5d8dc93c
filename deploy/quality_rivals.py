"""Other software's four bits of the same checkpoints, scored by the same command as ours.

llama.cpp's files are read back by `hexserve compile X.gguf --quant fp32`; auto-round leaves a checkpoint of floats.
"""

import json
import shutil
import time
import venv
from dataclasses import dataclass
from pathlib import Path

import gguf
from peers_setup import SOURCE, VERSION, PeersFolder
from quality_folder import QualityFolder, Subject
from quality_keys import checkpoint_key, key_of, sources_key, text_key
from quality_llama import THREADS
from quality_report import QualityRow
from quality_steps import QualitySteps

AUTO_ROUND, TORCH = "auto-round==0.16.1", "torch==2.13.0"
AUTO_ROUND_SCRIPT = Path(__file__).resolve().parent / "quality_auto_round.py"
IMATRIX_CHUNKS = 64  # of 512 tokens: as much text as `good` reads


@dataclass(frozen=True, slots=True)
class Rival:
    """way: whose it is. form: what it calls the form. options: of its quantiser. block: of auto-round's groups."""

    way: str
    form: str
    options: tuple[str, ...] = ()
    block: int = 0
    has_imatrix: bool = False


RIVALS = {
    "q4_0": Rival("llama.cpp", "Q4_0", ("--pure",)),
    "q4_k_m": Rival("llama.cpp", "Q4_K_M"),
    "q4_0_imatrix": Rival("llama.cpp", "Q4_0 imatrix", ("--pure",), has_imatrix=True),
    "q4_k_m_imatrix": Rival("llama.cpp", "Q4_K_M imatrix", has_imatrix=True),
    "auto_round_32": Rival("auto-round", "W4G32", block=32),
    "auto_round_128": Rival("auto-round", "W4G128", block=128),
}
# Of our forms those of others with as many bits a weight, or more: what ours must be ahead of.
EQUAL_BITS = {
    "w4": ("Q4_0", "Q4_0 imatrix", "Q4_K_M", "Q4_K_M imatrix", "W4G32"),
    "codes of 128": ("W4G128",),
}


class Rivals:
    """Makes and scores what other software makes of a checkpoint."""

    def __init__(self, folder: QualityFolder, steps: QualitySteps, peers: PeersFolder) -> None:
        self._folder = folder
        self._steps = steps
        self._peers = peers

    def row(self, subject: Subject, name: str) -> QualityRow:
        """One checkpoint as one of RIVALS has it."""
        rival = RIVALS[name]
        return self._auto_round(subject, rival) if rival.block else self._llama(subject, rival)

    def _llama(self, subject: Subject, rival: Rival) -> QualityRow:
        floats, made = self._folder.folder / "floats.gguf", self._folder.folder / "made.gguf"
        program = str(self._peers.llama_quantize())
        if subject.folder.is_file():  # a published model: as everybody quantises it
            command = [program, "--allow-requantize", str(subject.folder), str(floats), "F16"]
            self._steps.run(f"{subject.name}: floats", command)
            options: list[str] = []
        else:
            self._peers.float_gguf(subject.folder, floats)
            # The embedding table has 16 bits in our bundles too.
            options = ["--token-embedding-type", "f16", *rival.options]
        began = time.monotonic()
        if rival.has_imatrix:
            options += ["--imatrix", str(self._imatrix(subject, floats))]
        kind = rival.form.split()[0]
        self._steps.run(f"{subject.name} {rival.form}", [program, *options, str(floats), str(made), kind])
        seconds = time.monotonic() - began
        place = (subject.name, rival.form, rival.way)
        return self._folder.scored_floats(subject, place, gguf_bits(made), made, seconds)

    def _imatrix(self, subject: Subject, floats: Path) -> Path:
        path = self._folder.folder / "imatrix.gguf"
        command = [str(self._peers.llama_imatrix()), "-m", str(floats), "-f", str(subject.calibration), "-o", str(path)]
        command += ["--parse-special", "-c", "512", "--chunks", str(IMATRIX_CHUNKS), "-t", str(THREADS)]
        self._steps.run(f"{subject.name} imatrix", command)
        return path

    def _auto_round(self, subject: Subject, rival: Rival) -> QualityRow:
        """Its floats are kept: making them takes a quarter of an hour and more, scoring them seconds."""
        place = (subject.name, rival.form, rival.way)
        parts = checkpoint_key(subject.folder), text_key(subject.calibration), made_by(rival)
        made = self._folder.folder / f"auto-round-floats-{key_of(*parts)}"
        if not (made / "made.json").is_file():  # written last
            shutil.rmtree(made, ignore_errors=True)
            command = [str(self._python()), str(AUTO_ROUND_SCRIPT), str(subject.folder), str(made)]
            began = time.monotonic()
            printed = self._steps.run(f"{' '.join(place)}", [*command, str(subject.calibration), str(rival.block)])
            facts = json.loads(printed.strip().splitlines()[-1]) | {"seconds": time.monotonic() - began}
            (made / "made.json").write_text(json.dumps(facts), encoding="utf-8")
        facts = json.loads((made / "made.json").read_text(encoding="utf-8"))
        return self._folder.scored_floats(subject, place, facts["bits"], made, facts["seconds"])

    def _python(self) -> Path:
        """auto-round's own environment, made the first time."""
        home = self._folder.folder / AUTO_ROUND.replace("==", "-")
        python = home / "bin" / "python"
        if not (home / "made").is_file():
            venv.create(home, with_pip=True)
            constraints = home / "constraints.txt"
            constraints.write_text(f"{TORCH}\n", encoding="utf-8")
            pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraints), AUTO_ROUND]
            self._steps.run("install auto-round", pip)
            (home / "made").touch()
        return python


def made_by(rival: Rival) -> str:
    """Tells what made a rival's row: its version, and how it is asked."""
    if rival.block:
        return f"{AUTO_ROUND} {TORCH} {sources_key(AUTO_ROUND_SCRIPT)} {rival}"
    return f"{SOURCE} {VERSION} {rival} {IMATRIX_CHUNKS * rival.has_imatrix}"


def gguf_bits(path: Path) -> float:
    """Bits that a weight of the linear layers and the head takes on average in a GGUF file."""
    tensors = [each for each in gguf.GGUFReader(path).tensors if len(each.shape) > 1 and "token_embd" not in each.name]
    return 8.0 * sum(int(each.n_bytes) for each in tensors) / sum(int(each.n_elements) for each in tensors)
