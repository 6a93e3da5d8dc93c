"""llama.cpp's quantisations of the same files, read back as floats and scored by the same command as ours."""

import time
from dataclasses import dataclass
from pathlib import Path

import gguf

from tools.peers.setup import SOURCE, VERSION, PeersFolder
from tools.quality.folder import QualityFolder, Subject
from tools.quality.report import QualityRow

WAY = "llama.cpp"
BASELINES = {"q4_0": "Q4_0", "q4_k_m": "Q4_K_M"}


@dataclass(frozen=True, slots=True)
class Baselines:
    """Makes and scores what llama.cpp makes of a GGUF file."""

    folder: QualityFolder
    peers: PeersFolder

    def row(self, subject: Subject, name: str) -> QualityRow:
        """The 16-bit floats of a file as one of BASELINES has them."""
        form = BASELINES[name]
        self.peers.llama.program("llama-quantize")  # built before the clock runs
        began = time.monotonic()
        made = self.peers.llama.quantised(subject.folder, self.folder.folder / "made.gguf", form)
        seconds = time.monotonic() - began
        return self.folder.scored_floats(subject, (subject.name, form, WAY), gguf_bits(made), made, seconds)


def made_by(name: str) -> str:
    """Tells what made a baseline's row."""
    return f"{SOURCE} {VERSION} {BASELINES[name]}"


def gguf_bits(path: Path) -> float:
    """Bits that a weight of the linear layers and the head takes on average in a GGUF file."""
    tensors = [each for each in gguf.GGUFReader(path).tensors if len(each.shape) > 1 and "token_embd" not in each.name]
    return 8.0 * sum(int(each.n_bytes) for each in tensors) / sum(int(each.n_elements) for each in tensors)
