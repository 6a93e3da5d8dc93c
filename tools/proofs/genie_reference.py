"""Greedy tokens from libGenie, Qualcomm's own engine, and the graphs it ran: what a bundle is compared with.

`python -m tools.proofs.genie_reference BUNDLE JOBS.json ANSWERS.json` runs jobs [prompt, count] one after the other,
in a process of its own because the library may end it. C interface: GenieDialog.h, GenieLog.h, GenieCommon.h (public).
"""

import ctypes
import json
import os
import re
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen

from engine.errors import BundleError
from engine.processes import child_environment, module_command
from engine.runtime.qnn.environment import library_folder, library_path

SENTENCE_COMPLETE = 0
VERBOSE = 4
GREEDY = {"version": 1, "seed": 42, "temp": 1.0, "top-k": 1, "top-p": 1.0}
# Written for every graph of a step; the first of them has number 0 (libGenie 2.51).
EXECUTED = re.compile(rb"Executing graph 0 - (\S+)")
LAST_LINES = 30

Job = tuple[Sequence[int], int]


@dataclass(frozen=True, slots=True)
class GenieAnswers:
    """tokens: for each job, with the end token if there was one. steps: how often each first graph ran."""

    tokens: list[list[int]]
    steps: Counter[str]


def genie_greedy(
    bundle: Path, jobs: Sequence[Job], scratch: Path, on_step: Callable[[int], None] = lambda steps: None
) -> GenieAnswers:
    """Run jobs (prompt, most tokens), each on an empty cache. BundleError with Genie's last words when it fails.

    Genie puts the BOS token of genie_config.json before every prompt by itself. on_step: called after each step
    with the number of steps so far.
    """
    jobs_file, answers = (scratch / f"genie_{name}.json" for name in ("jobs", "answers"))
    jobs_file.write_text(json.dumps(jobs), encoding="utf-8")
    files = [str(path.resolve()) for path in (bundle, jobs_file, answers)]
    command = module_command("tools.proofs.genie_reference", *files)
    steps: Counter[str] = Counter()
    words: deque[bytes] = deque(maxlen=LAST_LINES)
    with Popen(command, env=child_environment(search_path()), stdout=PIPE, stderr=STDOUT) as child:
        assert child.stdout is not None
        for line in child.stdout:
            words.append(line)
            if found := EXECUTED.search(line):
                steps[found[1].decode()] += 1
                on_step(steps.total())
    if child.returncode != 0:
        last = b"".join(words).decode(errors="replace")
        raise BundleError(f"libGenie cannot run {bundle} (exit code {child.returncode}): {last}")
    return GenieAnswers(json.loads(answers.read_text(encoding="utf-8")), steps)


def search_path() -> dict[str, str]:
    """The environment in which libGenie finds its libraries; the loader reads it when a process starts."""
    name = "PATH" if sys.platform == "win32" else "LD_LIBRARY_PATH"
    folder = library_folder()
    folders = (str(folder), str(folder.with_name(f"{folder.name}.libs")), os.environ.get(name, ""))
    return {name: os.pathsep.join(filter(None, folders))}


class Genie:
    """One dialog of libGenie, which logs to stdout."""

    def __init__(self, config: str) -> None:
        for stem in ("QnnSystem", "QnnHtp"):
            ctypes.CDLL(str(library_path(stem)), mode=ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(str(library_path("Genie")))
        handle, log, self._dialog = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self._check("config", self._library.GenieDialogConfig_createFromJson(config.encode(), ctypes.byref(handle)))
        self._check("log", self._library.GenieLog_create(None, None, VERBOSE, ctypes.byref(log)))
        self._check("log", self._library.GenieDialogConfig_bindLogger(handle, log))
        self._check("create", self._library.GenieDialog_create(handle, ctypes.byref(self._dialog)))

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        """Tokens of one query on a fresh dialog."""
        tokens: list[int] = []
        kind = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint32), ctypes.c_uint32, ctypes.c_int, ctypes.c_void_p)
        callback = kind(lambda ids, number, code, user: tokens.extend(ids[index] for index in range(number)))
        self._check("reset", self._library.GenieDialog_reset(self._dialog))
        self._library.GenieDialog_setMaxNumTokens.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
        self._check("limit", self._library.GenieDialog_setMaxNumTokens(self._dialog, count))
        query = self._library.GenieDialog_tokenQuery
        query.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, kind, ctypes.c_void_p]
        ids = (ctypes.c_uint32 * len(prompt))(*prompt)
        self._check("query", query(self._dialog, ids, len(prompt), SENTENCE_COMPLETE, callback, None))
        return tokens

    def _check(self, step: str, code: int) -> None:
        if code != 0:
            raise SystemExit(f"Genie's {step} failed with code {code}")


def main(bundle: Path, jobs_file: Path, answers: Path) -> None:
    """Run the jobs from inside the bundle, as Genie's paths are relative to the working folder."""
    jobs = json.loads(jobs_file.read_text(encoding="utf-8"))
    os.chdir(bundle)
    config = json.loads(Path("genie_config.json").read_text(encoding="utf-8"))
    config["dialog"]["sampler"] = GREEDY
    genie = Genie(json.dumps(config))
    answers.write_text(json.dumps([genie.greedy(prompt, count) for prompt, count in jobs]), encoding="utf-8")
    sys.stdout.flush()
    os._exit(0)  # the emulator's threads outlive the dialog


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
