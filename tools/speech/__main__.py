"""hexserve beside faster-whisper and whisper.cpp on the published Whisper base: `python -m tools.speech`.

All have it in 8 bits with the same threads, read greedily (a beam of one), rise in temperature alike, and get the same
recordings: all for their words (whisper.cpp: English), then English ones in turns, alone and (not whisper.cpp) four at
once. Needs espeak-ng, flite, apt-get and `hexserve[dev]`. Ends with 1 when something failed or a bar is missed.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import httpx
import numpy as np
from gguf import GGMLQuantizationType

from engine.processes import module_command
from server.commands.own_server import ServerFailed, free_port, running_child, serve_command
from tools.packages import environment
from tools.real_models.debian import SHA256 as LANGUAGES
from tools.real_models.fetch import FetchFailed, RealModels, default_folder
from tools.speech.fidelity import divergence_of
from tools.speech.ggml import write_published
from tools.speech.recordings import NoVoice, ReadAloud, recordings, recordings_of_people
from tools.speech.report import MISSED, Listener, Sound, table, wrong_words

BASELINES = {"faster-whisper": ("faster-whisper==1.2.1",), "whisper.cpp": ("pywhispercpp==1.5.1", "numpy==2.4.6")}
AT_ONCE, TIMEOUT_S = 4, 3600
MODEL = "whisper-base"
Ask = Callable[[Sequence[ReadAloud]], tuple[list[str], float]]


class NoBaseline(Exception):
    """It cannot be installed or has ended."""


def main() -> int:
    """Set up, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/speech"))
    parser.add_argument("--model", type=Path, help="a Whisper of CTranslate2, instead of the published base")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of each program")
    parser.add_argument("--rounds", type=int, default=3)
    try:
        print(told := measured(parser.parse_args()))
    except (NoVoice, NoBaseline, FetchFailed, ServerFailed, httpx.HTTPError) as error:
        sys.exit(f"error: {error}")
    return int(MISSED in told)


def measured(options: argparse.Namespace) -> str:
    """The table."""
    models = default_folder()
    programs = recordings(options.folder / "programs")
    people = [each for language in LANGUAGES for each in recordings_of_people(models, language)]
    said = programs + people
    english = [each for each in said if each.language == "en"]
    model = options.model or RealModels(models).fetch(MODEL)
    floats, *bundles = (_compiled(model, options.folder, quant) for quant in ("fp32", "int8", "int4"))
    ggml = options.folder / "ggml.bin"
    if not ggml.exists():
        write_published(model, ggml, GGMLQuantizationType.Q8_0)
    together = programs[-3:] + programs[:1]
    with ExitStack() as stack:
        ours = stack.enter_context(_hexserve(bundles[0], options.threads))
        baseline = partial(_baseline, options.folder)
        lone = stack.enter_context(baseline("faster-whisper", model, options.threads, 1))
        several = stack.enter_context(baseline("faster-whisper", model, 1, options.threads))  # a worker for each core
        cpp = stack.enter_context(baseline("whisper.cpp", ggml, options.threads, 1))
        own, other = (Listener(_errors(said, ask(said)[0])) for ask in (ours(1), lone))
        third = Listener(_errors(english, cpp(english)[0]))
        for ask in (ours(AT_ONCE), several):  # neither is timed cold
            ask(together)
        for _ in range(options.rounds):
            own.alone.append(ours(1)(english)[1])
            own.together.append(ours(AT_ONCE)(together)[1])
            other.alone.append(lone(english)[1])
            other.together.append(several(together)[1])
            third.alone.append(cpp(english)[1])
    lengths = [sum(each.seconds for each in listed) for listed in (english, together)]
    lost = {each.name: divergence_of(each, floats, english[len(programs) :], options.threads) for each in bundles}
    return table(own, other, third, Sound(_errors(said, [""] * len(said)), *lengths), lost)


def _errors(said: Sequence[ReadAloud], texts: Sequence[str]) -> dict[str, list[int]]:
    """Wrong words of each recording of a folder."""
    found = dict[str, list[int]]()
    for each, text in zip(said, texts, strict=True):
        found.setdefault(each.path.parent.name, []).append(wrong_words(each.text, text, each.language)[0])
    return found


def _compiled(model: Path, folder: Path, quant: str) -> Path:
    bundle = folder / f"bundle-{quant}"
    if not bundle.exists():
        asked = [*module_command("server", "compile"), str(model), "-o", str(bundle), "--quant", quant, "--name", MODEL]
        subprocess.run(asked, check=True)
    return bundle


def _samples(said: ReadAloud, folder: Path) -> Path:
    """For whom reads no files of other rates: 16,000 a second, float32."""
    file = folder / f"{said.language}-{said.path.stem}.npy"
    if not file.exists():
        folder.mkdir(exist_ok=True)
        np.save(file, said.samples)
    return file


@contextmanager
def _hexserve(bundle: Path, threads: int) -> Iterator[Callable[[int], Ask]]:
    port = free_port()
    with running_child([*serve_command(str(bundle), port), "--threads", str(threads)], port) as child:
        yield lambda at_once: partial(_asked, child.address, at_once)


def _asked(address: str, at_once: int, said: Sequence[ReadAloud]) -> tuple[list[str], float]:
    def text(each: ReadAloud) -> str:
        fields = {"model": MODEL, "response_format": "text", "language": each.language}
        files = {"file": (each.path.name, each.path.read_bytes())}
        answer = httpx.post(f"{address}/v1/audio/transcriptions", data=fields, files=files, timeout=TIMEOUT_S)
        return answer.raise_for_status().text

    with ThreadPoolExecutor(at_once) as pool:
        start = time.perf_counter()
        return list(pool.map(text, said)), time.perf_counter() - start


@contextmanager
def _baseline(folder: Path, name: str, model: Path, threads: int, at_once: int) -> Iterator[Ask]:
    try:
        python = environment(folder / name, *BASELINES[name])
    except OSError as error:
        raise NoBaseline(str(error)) from None
    command = [str(python), str(Path(__file__).with_name("baselines.py")), name, str(model), str(threads), str(at_once)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None

        def ask(said: Sequence[ReadAloud]) -> tuple[list[str], float]:
            paths = [_samples(each, folder / "samples") if name == "whisper.cpp" else each.path for each in said]
            asked = [(str(path), each.language) for path, each in zip(paths, said, strict=True)]
            print(json.dumps(asked), file=child.stdin, flush=True)
            for line in child.stdout or ():
                if line.startswith('{"texts"'):  # libraries of baselines print too
                    answer = json.loads(line)
                    return answer["texts"], answer["seconds"]
            raise NoBaseline(f"{name} has ended")

        yield ask
        child.stdin.close()


if __name__ == "__main__":
    sys.exit(main())
