"""Whispers of published sizes with random weights: `python -m tools.speech.sizes [--sizes tiny base ...]`.

Each is written, compiled and run as a worker runs it, one after the other in processes of their own: how long that
takes and the most memory (resident) of each. Needs an installed `hexserve[dev]`, Linux and 4 GB of disk for large-v3.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from safetensors.numpy import save_file

from engine.bundle.manifest import load_manifest
from engine.bundle.speech import speech_of
from engine.config import EngineConfig
from engine.processes import module_command
from engine.request import Request, SamplingParams, SpeechRules
from engine.worker.assembly import assemble
from tools.random_checkpoint import byte_tokenizer

TIMES, TOKENS, AT_ONCE = 1501, 100, 4
WORDS = 50_257
Found = TypeVar("Found")
HEADINGS = "size | million parameters | compile, s | GB | bundle, GB | load, s | hear 30 s, s | token, ms"


class Size(NamedTuple):
    """layers: that listen, and that write. is_v3: 128 bands and Cantonese."""

    hidden: int
    layers: tuple[int, int]
    is_v3: bool = False


SIZES = {
    "tiny": Size(384, (4, 4)),
    "base": Size(512, (6, 6)),
    "small": Size(768, (12, 12)),
    "medium": Size(1024, (24, 24)),
    "large-v3": Size(1280, (32, 32), is_v3=True),
    "large-v3-turbo": Size(1280, (32, 4), is_v3=True),
    "distil-medium": Size(1024, (24, 2)),
    "distil-large-v3": Size(1280, (32, 2), is_v3=True),
}


def write_random(folder: Path, size: Size, seed: int = 0) -> int:
    """A Hugging Face folder in float16; how many parameters it has."""
    import torch  # noqa: PLC0415 (what starts processes stays small: the peak of each begins with its parent's)
    from transformers import WhisperConfig, WhisperForConditionalGeneration  # noqa: PLC0415
    from transformers.models.whisper.tokenization_whisper import LANGUAGES  # noqa: PLC0415

    codes = [code for code in LANGUAGES if size.is_v3 or code != "yue"]
    names = ("endoftext", "startoftranscript", *codes, "translate", "transcribe", "startoflm", "startofprev")
    special = [f"<|{name}|>" for name in (*names, "nospeech", "notimestamps")]  # in their published order
    sizes: dict[str, Any] = {"num_mel_bins": 128 if size.is_v3 else 80, "vocab_size": WORDS + len(special) + TIMES}
    sizes |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), size.hidden // 64)
    sizes |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 4 * size.hidden)
    sizes |= dict(zip(("encoder_layers", "decoder_layers"), size.layers, strict=True))
    config = WhisperConfig(d_model=size.hidden, architectures=["WhisperForConditionalGeneration"], **sizes)
    config.save_pretrained(folder)
    byte_tokenizer(WORDS + len(special), special).save(str(folder / "tokenizer.json"))
    with torch.device("meta"):
        empty = WhisperForConditionalGeneration(config).model.state_dict()
    random, tensors = np.random.default_rng(seed), {}
    for name, value in empty.items():
        shape = tuple(value.shape)
        wide = random.standard_normal(shape, np.float32) * np.prod(shape[1:], dtype=np.float32) ** -0.5
        tensors[f"model.{name}"] = (np.ones(shape) if "norm.weight" in name else wide).astype(np.float16)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return sum(tensor.size for tensor in tensors.values())


def compiled(source: Path, bundle: Path, quant: str) -> float:
    """Seconds of the command."""
    start = time.perf_counter()
    command = [*module_command("server", "compile"), str(source), "-o", str(bundle), "--quant", quant]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def worked(bundle: Path, threads: int) -> tuple[float, ...]:
    """Seconds to load, to hear 30 s of random sound, for a token of one text, and for one of each of several."""
    start, spec = time.perf_counter(), speech_of(load_manifest(bundle))
    made = assemble(EngineConfig(str(bundle), max_running=AT_ONCE, threads=threads))
    load = time.perf_counter() - start
    audio = np.random.default_rng(1).standard_normal(spec.features, np.float32).tobytes()
    rules = SpeechRules((spec.end,), (), spec.end, spec.first_time, times=False)
    prompt = (spec.start, spec.languages["en"], spec.transcribe, spec.no_timestamps)
    asked = Request("", prompt, SamplingParams(1, temperature=0.0, speech=rules), audio=audio)

    def seconds(texts: int, tokens: int) -> float:
        start = time.perf_counter()
        for number in range(texts):
            params = replace(asked.params, max_tokens=tokens)
            made.loop.add(replace(asked, id=str(number), params=params), (), 0, 0.0)
        while made.loop.has_work:
            assert not made.loop.step().failures
        return time.perf_counter() - start

    hear = seconds(1, 1)
    each = [(seconds(texts, TOKENS + 1) - seconds(texts, 1)) / TOKENS for texts in (1, AT_ONCE)]
    made.loop.close()
    made.runtime.close()
    return load, hear, *each


def alone(work: Callable[..., Found], *given: object) -> tuple[Found, int]:
    """What a function returns in a process of its own, and the most bytes resident of that or of one it started."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_with_peak, work, *given).result()


def _with_peak(work: Callable[..., Found], *given: object) -> tuple[Found, int]:
    found = work(*given)
    peaks = (resource.getrusage(whose).ru_maxrss for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return found, max(peaks) * 1024


def measured(name: str, folder: Path, quant: str, threads: int) -> str:
    """A line of the table."""
    source, bundle = folder / "source", folder / "bundle"
    parameters, _ = alone(write_random, source, SIZES[name])
    compiling, compiler = alone(compiled, source, bundle, quant)
    shutil.rmtree(source)
    size = sum(file.stat().st_size for file in bundle.iterdir())
    (load, hear, token, tokens), worker = alone(worked, bundle, threads)
    cells = (f"{parameters / 1e6:.0f}", f"{compiling:.0f}", f"{compiler / 1e9:.2f}", f"{size / 1e9:.2f}")
    times = (f"{load:.1f}", f"{hear:.2f}", f"{1000 * token:.1f}", f"{1000 * tokens:.1f}")
    return f"| {' | '.join((name, *cells, *times, f'{worker / 1e9:.2f}'))} |"


def main() -> int:
    """Measure and print each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--quant", choices=("fp32", "int8", "int4"), default="int8")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    print(f"| {HEADINGS} | {AT_ONCE} texts, ms | worker, GB |\n" + "|---" * 10 + "|", flush=True)
    for name in options.sizes:
        with tempfile.TemporaryDirectory() as folder:
            print(measured(name, Path(folder), options.quant, options.threads), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
