"""hexserve beside faster-whisper on the published Whisper base: `python -m tools.speech [--folder build/speech]`.

Both have it in int8 with the same threads, read greedily, rise in temperature alike, and get the same recordings in
turns: each alone, then four at once. Needs espeak-ng, flite and an installed `hexserve[dev]`. Ends with 1 when
something failed or a bar is missed.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx

from engine.processes import module_command
from server.commands.own_server import ServerFailed, free_port, running_child, serve_command
from tools.packages import install
from tools.real_models.fetch import FetchFailed, RealModels, default_folder
from tools.speech.recordings import NoVoice, ReadAloud, recordings
from tools.speech.report import MISSED, Listener, table, wrong_words

RIVAL = "faster-whisper==1.2.1"
AT_ONCE, TIMEOUT_S = 4, 3600
Ask = Callable[[Sequence[ReadAloud]], tuple[list[str], float]]


class NoRival(Exception):
    """faster-whisper cannot be installed or has ended."""


@dataclass(slots=True)
class Rounds:
    """Of one program, round after round; texts: of the first round."""

    texts: list[str] = field(default_factory=list)
    alone: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)

    def side(self, said: Sequence[ReadAloud]) -> Listener:
        """What is reported."""
        errors = sum(wrong_words(each.text, text)[0] for each, text in zip(said, self.texts, strict=True))
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
    except (NoVoice, NoRival, FetchFailed, ServerFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return int(MISSED in told)


def measured(options: argparse.Namespace) -> str:
    """The table."""
    said = recordings(options.folder / "recordings")
    model = options.model or RealModels(default_folder()).fetch("whisper-base")
    bundle = options.folder / "bundle"
    if not bundle.exists():
        compiled = [*module_command("server", "compile"), str(model), "-o", str(bundle), "--quant", "int8"]
        subprocess.run(compiled, check=True)
    python, own, other = _environment(options.folder / "faster-whisper"), Rounds(), Rounds()
    together = said[-3:] + said[:1]
    with ExitStack() as stack:
        ours = stack.enter_context(_hexserve(bundle, options.threads))
        lone = stack.enter_context(_rival(python, model, options.threads, 1))
        # Its own way to several at once: a worker for each core.
        several = stack.enter_context(_rival(python, model, 1, options.threads))
        for _ in range(options.rounds):
            for figures, one_by_one, at_once in ((own, ours(1), ours(AT_ONCE)), (other, lone, several)):
                texts, seconds = one_by_one(said)
                figures.texts = figures.texts or texts
                figures.alone.append(seconds)
                figures.together.append(at_once(together)[1])
    words = sum(wrong_words(each.text, "")[1] for each in said)
    lengths = [sum(each.seconds for each in listed) for listed in (said, together)]
    return table(own.side(said), other.side(said), words, *lengths)


@contextmanager
def _hexserve(bundle: Path, threads: int) -> Iterator[Callable[[int], Ask]]:
    port = free_port()
    with running_child([*serve_command(str(bundle), port), "--threads", str(threads)], port) as child:
        yield lambda at_once: partial(_asked, child.address, at_once)


def _asked(address: str, at_once: int, said: Sequence[ReadAloud]) -> tuple[list[str], float]:
    def text(each: ReadAloud) -> str:
        fields = {"model": "whisper-base", "response_format": "text", "language": "en"}
        files = {"file": (each.path.name, each.path.read_bytes())}
        answer = httpx.post(f"{address}/v1/audio/transcriptions", data=fields, files=files, timeout=TIMEOUT_S)
        return answer.raise_for_status().text

    with ThreadPoolExecutor(at_once) as pool:
        start = time.perf_counter()
        return list(pool.map(text, said)), time.perf_counter() - start


@contextmanager
def _rival(python: Path, model: Path, threads: int, at_once: int) -> Iterator[Ask]:
    script = Path(__file__).parent / "rival.py"
    command = [str(python), str(script), str(model), str(threads), str(at_once)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None

        def ask(said: Sequence[ReadAloud]) -> tuple[list[str], float]:
            print(json.dumps([str(each.path) for each in said]), file=child.stdin, flush=True)
            if not (line := child.stdout.readline() if child.stdout else ""):
                raise NoRival("faster-whisper has ended")
            answer = json.loads(line)
            return answer["texts"], answer["seconds"]

        yield ask
        child.stdin.close()


def _environment(folder: Path) -> Path:
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    if not (folder / "whole").exists():
        venv.create(folder, symlinks=sys.platform != "win32")
        if (done := install(python, RIVAL)).returncode:
            raise NoRival(f"{RIVAL} cannot be installed: {done.stderr.strip()}")
        (folder / "whole").touch()
    return python.absolute()


if __name__ == "__main__":
    sys.exit(main())
