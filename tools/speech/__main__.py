"""hexserve beside faster-whisper and whisper.cpp on the published Whisper base: `python -m tools.speech`.

All have it in 8 bits with the same threads, read greedily (a beam of one), rise in temperature alike, and get the same
recordings in turns: each alone, then four at once (not whisper.cpp). Needs espeak-ng, flite, apt-get and an installed
`hexserve[dev]`. Ends with 1 when something failed or a bar is missed.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import numpy as np
from gguf import GGMLQuantizationType

from engine.processes import module_command
from server.commands.own_server import ServerFailed, free_port, running_child, serve_command
from tools.packages import environment
from tools.real_models.fetch import FetchFailed, RealModels, default_folder
from tools.speech.fidelity import divergence_of
from tools.speech.ggml import write_published
from tools.speech.recordings import NoVoice, ReadAloud, recordings, recordings_of_people
from tools.speech.report import MISSED, Listener, Sound, table, wrong_words

BASELINES = {"faster-whisper": ("faster-whisper==1.2.1",), "whisper.cpp": ("pywhispercpp==1.5.1", "numpy==2.4.6")}
AT_ONCE, TIMEOUT_S = 4, 3600
MODEL = "whisper-base"
Ask = Callable[[Sequence[Path]], tuple[list[str], float]]


class NoBaseline(Exception):
    """It cannot be installed or has ended."""


@dataclass(slots=True)
class Rounds:
    """Of one program, round after round; texts: of the first round."""

    texts: list[str] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)

    def note(self, answer: tuple[list[str], float]) -> None:
        """Of all recordings, one by one."""
        self.texts = self.texts or answer[0]
        self.alone.append(answer[1])

    def side(self, groups: Mapping[str, Sequence[ReadAloud]]) -> Listener:
        """What is reported."""
        texts = iter(self.texts)
        errors = [sum(wrong_words(each.text, next(texts))[0] for each in said) for said in groups.values()]
        return Listener(errors, self.alone, self.together)


def main() -> int:
    """Set up, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/speech"))
    parser.add_argument("--model", type=Path, help="a Whisper of CTranslate2, instead of the published base")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of each program")
    parser.add_argument("--rounds", type=int, default=3)
    try:
        print(told := measured(parser.parse_args()))
    except (NoVoice, NoBaseline, FetchFailed, ServerFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return int(MISSED in told)


def measured(options: argparse.Namespace) -> str:
    """The table."""
    models = default_folder()
    groups = {"programs": recordings(options.folder / "recordings"), "a person": recordings_of_people(models)}
    said = [each for group in groups.values() for each in group]
    model = options.model or RealModels(models).fetch(MODEL)
    bundle, floats = (_compiled(model, options.folder, quant) for quant in ("int8", "fp32"))
    ggml = options.folder / "ggml.bin"
    if not ggml.exists():
        write_published(model, ggml, GGMLQuantizationType.Q8_0)
    samples = _as_samples(said, options.folder / "samples")
    together = groups["programs"][-3:] + said[:1]
    own, other, third = Rounds(), Rounds(), Rounds()
    with ExitStack() as stack:
        ours = stack.enter_context(_hexserve(bundle, options.threads))
        baseline = partial(_baseline, options.folder)
        lone = stack.enter_context(baseline("faster-whisper", model, options.threads, 1))
        # Its own way to several at once: a worker for each core.
        several = stack.enter_context(baseline("faster-whisper", model, 1, options.threads))
        cpp = stack.enter_context(baseline("whisper.cpp", ggml, options.threads, 1))
        for _ in range(options.rounds):
            own.note(ours(1)([each.path for each in said]))
            own.together.append(ours(AT_ONCE)([each.path for each in together])[1])
            other.note(lone([each.path for each in said]))
            other.together.append(several([each.path for each in together])[1])
            third.note(cpp(samples))
    words = {name: sum(wrong_words(each.text, "")[1] for each in group) for name, group in groups.items()}
    lengths = [sum(each.seconds for each in listed) for listed in (said, together)]
    lost = divergence_of(bundle, floats, groups["a person"], options.threads)
    return table(own.side(groups), other.side(groups), third.side(groups), Sound(words, *lengths), lost)


def _compiled(model: Path, folder: Path, quant: str) -> Path:
    bundle = folder / f"bundle-{quant}"
    if not bundle.exists():
        asked = [*module_command("server", "compile"), str(model), "-o", str(bundle), "--quant", quant, "--name", MODEL]
        subprocess.run(asked, check=True)
    return bundle


def _as_samples(said: Sequence[ReadAloud], folder: Path) -> list[Path]:
    """For whom reads no files of other rates: 16,000 a second, float32."""
    folder.mkdir(exist_ok=True)
    files = [folder / f"{number}.npy" for number in range(len(said))]
    for each, file in zip(said, files, strict=True):
        np.save(file, each.samples)
    return files


@contextmanager
def _hexserve(bundle: Path, threads: int) -> Iterator[Callable[[int], Ask]]:
    port = free_port()
    with running_child([*serve_command(str(bundle), port), "--threads", str(threads)], port) as child:
        yield lambda at_once: partial(_asked, child.address, at_once)


def _asked(address: str, at_once: int, said: Sequence[Path]) -> tuple[list[str], float]:
    def text(path: Path) -> str:
        fields = {"model": MODEL, "response_format": "text", "language": "en"}
        files = {"file": (path.name, path.read_bytes())}
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

        def ask(said: Sequence[Path]) -> tuple[list[str], float]:
            print(json.dumps([str(path) for path in said]), file=child.stdin, flush=True)
            for line in child.stdout or ():
                if line.startswith('{"texts"'):  # libraries of baselines print too
                    answer = json.loads(line)
                    return answer["texts"], answer["seconds"]
            raise NoBaseline(f"{name} has ended")

        yield ask
        child.stdin.close()


if __name__ == "__main__":
    sys.exit(main())
