"""How near both servers are to a GGUF file's own floats, and which instructions each of them multiplies with."""

import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from tools.fidelity.__main__ import BAR
from tools.fidelity.served import read_as_served
from tools.llama_cpp.fidelity import CONTEXT, OWN, PUBLISHED, WINDOWS, Measurement
from tools.llama_cpp.programs import BuildFailed, LlamaCpp
from tools.peers.report import PeerRatio
from tools.real_models.held_out import held_out_text

CPU_FACTS = Path("/proc/cpuinfo")
INSTRUCTIONS = ("AVX2", "AVX_VNNI", "AVX512_VNNI", "AVX512_BF16", "AMX_INT8", "NEON", "MATMUL_INT8")


def ratio_of_fidelity(gguf: Path, llama: LlamaCpp, folder: Path, say: Callable[[str], None]) -> PeerRatio:
    """KL of what hexserve serves over that of llama.cpp with float16 caches, on the same tokens. BuildFailed.

    folder: gets 5 GB, of which nothing stays; what a broken run left there goes first.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        text = folder / "held-out.txt"
        text.write_text(held_out_text(llama.tree), encoding="utf-8", newline="\n")
        theirs = Measurement(gguf.stem, gguf, llama, folder / "llama", say).one(text, PUBLISHED, OWN)
        shutil.rmtree(folder / "llama")
        (ours,) = read_as_served([gguf], text.read_text(encoding="utf-8"), CONTEXT, WINDOWS, folder)
    finally:
        shutil.rmtree(folder)
    kl = ours.quality.kl
    if kl is None:
        raise BuildFailed(f"{gguf.name} was compared with nothing")
    load = f"KL to the file's floats, {kl.value:.1e} / {theirs.kl.mean:.1e} on {ours.quality.tokens:,} tokens"
    return PeerRatio(load, f"{ours.kv} caches / float16", kl.value / theirs.kl.mean, BAR)


def kernels(llama: LlamaCpp, gguf: Path) -> str:
    """Of both sides, in one sentence. onnxruntime takes what the processor has, but multiplies blocks without AMX."""
    ours = [name for name in _processor() if not name.startswith("AMX")]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as text:
        text.write("a line of words and nothing else\n" * 40)
        text.flush()
        words = ["-m", str(gguf), "-f", text.name, "-c", "32", "--chunks", "1"]
        command = [str(llama.program("llama-perplexity")), *words]
        printed = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    theirs = instructions_in(printed.stdout + printed.stderr)
    return f"hexserve multiplies with {', '.join(ours) or 'no vectors'}, llama.cpp with {', '.join(theirs) or 'none'}."


def instructions_in(printed: str) -> list[str]:
    """Those that a line of llama.cpp's features names as there."""
    return [name for name in INSTRUCTIONS if re.search(rf"\b{name} = 1\b", printed)]


def _processor() -> list[str]:
    if not CPU_FACTS.is_file():
        return [platform.machine()]
    words = set(CPU_FACTS.read_text(encoding="utf-8").upper().split())
    return [name for name in INSTRUCTIONS if name in words]
