"""Runs each drawn mutant against the tests that mirror its file, two at a time, and says which were noticed.

`python -m tests.mutants.measure FILE LEAST`: exit code 1 when fewer than LEAST per cent were. A mutant lives in the
memory of a forked process, which has imported the slow libraries already; no file is changed. POSIX only.
"""

import json
import os
import signal
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

from tests.mutants.changed_module import replace_source

AT_ONCE = 2
SHORTEST_LIMIT_S = 40.0
SLOWER = 3  # than the unchanged code: then it hangs, and that is noticed
LONGEST_LIMIT_S = 600.0  # for all tests of a folder
# Not transformers: a process that is forked after its import hangs.
SLOW_IMPORTS = ("hypothesis", "numpy", "onnxruntime", "torch", "llguidance", "httpx", "fastapi", "openai")
OPTIONS = (
    *("-p", "no:cacheprovider", "-p", "tests.mutants.quick"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # of what is imported already
)
ROUTES, WORKER = "tests/server/api/openai", "tests/engine/worker"
# What reads the requests of a route and writes its answers is tested through the route; what only one kind of bundle
# uses, behind the scheduler.
ELSEWHERE = {
    "engine/core/text_scheduler.py": (f"{WORKER}/test_text_steps.py",),
    "engine/grammar/masks.py": (
        "tests/engine/grammar/test_masks.py",
        "tests/engine/grammar/test_loop_with_grammars.py",
    ),
    "engine/runtime/attention.py": (f"{WORKER}/test_windows.py",),
    "engine/runtime/block_values.py": (f"{WORKER}/test_hand_over.py",),
    "engine/runtime/buffers.py": ("tests/genie/test_carried.py",),
    "engine/runtime/encoder.py": ("tests/engine/compile/targets/encoder/test_dense_modules.py",),
    "engine/runtime/kv.py": (f"{WORKER}/test_hand_over.py", f"{WORKER}/test_windows.py"),
    "engine/runtime/kv_memory.py": (f"{WORKER}/test_hand_over.py", f"{WORKER}/test_windows.py"),
    "engine/runtime/linear.py": (f"{WORKER}/test_experts.py",),
    "engine/runtime/reading.py": ("tests/genie/test_self_check.py",),
    "engine/runtime/serial.py": ("tests/genie/test_carried.py", "tests/genie/test_serving.py"),
    "engine/runtime/speech.py": (f"{WORKER}/test_speech.py",),
    "engine/runtime/vision.py": ("tests/long/engine/vision/test_against_transformers.py",),
    "engine/text/template_pool.py": ("tests/long/engine/client/test_templates.py",),
    "server/api/openai/chat.py": (f"{ROUTES}/test_chat.py",),
    "server/generation/answers.py": (
        f"{ROUTES}/test_chat_writer.py",
        f"{ROUTES}/test_completions.py",
        f"{ROUTES}/test_chat.py",
        f"{ROUTES}/test_prediction.py",
    ),
    "server/generation/chat_request.py": ("tests/server/api/test_refusals.py",),
    "server/generation/framing.py": ("tests/server/api/anthropic/test_message.py",),
    "server/generation/launch.py": (
        "tests/server/api/test_images.py",
        "tests/server/middleware/test_layer.py",
        f"{ROUTES}/test_chat.py",
    ),
    "server/generation/params.py": (
        "tests/server/api/test_refusals.py",
        f"{ROUTES}/test_embeddings.py",
        f"{ROUTES}/test_chat.py",
    ),
    "server/generation/parsing.py": (f"{ROUTES}/test_chat.py",),
    "server/generation/structured_output.py": (f"{ROUTES}/test_chat.py",),
    "server/middleware/checks.py": ("tests/server/http/test_websockets.py",),
    "server/api/openai/response_writer.py": (f"{ROUTES}/test_responses.py", f"{ROUTES}/test_responses_forms.py"),
}


@dataclass(frozen=True)
class Mutant:
    """See `draw.Mutant`. Without a text it is the code as it is."""

    path: str
    line: int
    before: str
    after: str
    text: str

    @property
    def folder(self) -> str:
        """Where its file is."""
        return self.path.rsplit("/", 1)[0]

    @property
    def tests(self) -> tuple[str, ...]:
        """The files that mirror it, what tests it elsewhere, then its whole folder of quick tests."""
        mirror = f"{self.folder}/test_{self.path.rsplit('/', 1)[1]}"
        found = [f"{tier}/{mirror}" for tier in ("tests", "tests/long") if Path(tier, mirror).exists()]
        found += ELSEWHERE.get(self.path, ())
        return tuple(found) if self.path.endswith("masks.py") else (*found, f"tests/{self.folder}")


@dataclass
class Runs:
    """Forked test runs by process id: what each runs, and when its time is over."""

    started: dict[int, tuple[Mutant, float, float]] = field(default_factory=dict)

    def start(self, mutant: Mutant, tests: Sequence[str], limit_s: float) -> None:
        """Run tests in a process of their own, with the mutant in place of its file."""
        pid = os.fork()
        if not pid:
            _run_tests(mutant, tests)
        now = time.monotonic()
        self.started[pid] = (mutant, now, now + limit_s)

    def finished(self) -> tuple[Mutant, bool, float]:
        """Wait for one: its mutant, whether all tests passed, seconds."""
        while True:
            for pid, (mutant, began, end) in list(self.started.items()):
                now = time.monotonic()
                done, status = os.waitpid(pid, os.WNOHANG)
                if not done and now < end:
                    continue
                if not done:
                    os.killpg(pid, signal.SIGKILL)
                    _, status = os.waitpid(pid, 0)
                del self.started[pid]
                return mutant, os.waitstatus_to_exitcode(status) == 0, now - began
            time.sleep(0.02)

    def end(self) -> None:
        """Kill what still runs: each has a process group of its own, which Ctrl-C does not reach."""
        for pid in self.started:
            os.killpg(pid, signal.SIGKILL)


def _run_tests(mutant: Mutant, tests: Sequence[str]) -> None:
    """The child's whole life."""
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    try:
        if mutant.text:
            replace_source(mutant.path, mutant.text)
        import pytest

        code = pytest.main([*tests, "-x", *OPTIONS])
    except BaseException:  # noqa: BLE001 (whatever a mutant does, the child must not run its parent's code)
        code = 1
    os._exit(int(code))


def limits(mutants: Iterable[Mutant], runs: Runs) -> dict[str, float]:
    """By folder the seconds that its tests may take. SystemExit when one fails on the code as it is."""
    wanted: dict[str, set[str]] = {}
    for mutant in mutants:
        wanted.setdefault(mutant.folder, set()).update(mutant.tests)
    left, found = dict(wanted), dict[str, float]()
    while left or runs.started:
        while left and len(runs.started) < AT_ONCE:
            folder, tests = left.popitem()
            runs.start(Mutant(f"{folder}/", 0, "", "", ""), sorted(tests), LONGEST_LIMIT_S)
        unchanged, passed, seconds = runs.finished()
        if not passed:
            raise SystemExit(f"without any change these tests fail: {' '.join(sorted(wanted[unchanged.folder]))}")
        found[unchanged.folder] = max(SHORTEST_LIMIT_S, SLOWER * seconds)
    return found


def survivors(mutants: Sequence[Mutant], runs: Runs) -> list[Mutant]:
    """The mutants that no test noticed."""
    limit_of = limits(mutants, runs)
    left, found = list(mutants), list[Mutant]()
    while left or runs.started:
        while left and len(runs.started) < AT_ONCE:
            mutant = left.pop()
            runs.start(mutant, mutant.tests, limit_of[mutant.folder])
        mutant, passed, _ = runs.finished()
        found += [mutant] if passed else []
        print(f"\nunnoticed: {mutant.path}:{mutant.line}" if passed else ".", end="\n" if passed else "", flush=True)
    print()
    return found


def without_equivalents(mutants: Iterable[Mutant]) -> list[Mutant]:
    """Those that a test could notice; how many others there were is printed."""
    listed = tomllib.loads(Path(__file__).with_name("equivalents.toml").read_text(encoding="utf-8"))["equivalent"]
    known = {(entry["path"], entry["before"], entry["after"]) for entry in listed}
    every = list(mutants)
    kept = [mutant for mutant in every if (mutant.path, mutant.before, mutant.after) not in known]
    print(f"{len(every) - len(kept)} of {len(every)} mutants are equivalent or only about speed: equivalents.toml")
    return kept


def report(mutants: Sequence[Mutant], missed: Sequence[Mutant]) -> float:
    """Print a table by folder and the survivors; the share that was noticed, in per cent."""
    drawn, lost = (Counter(mutant.folder for mutant in part) for part in (mutants, missed))
    for folder, count in sorted(drawn.items()):
        print(f"{folder:24}{count:6} mutants{count - lost[folder]:6} noticed{1 - lost[folder] / count:8.1%}")
    share = 100.0 * (1 - len(missed) / len(mutants))
    print(f"{'all':24}{len(mutants):6} mutants{len(mutants) - len(missed):6} noticed{share:7.1f}%\n")
    for mutant in sorted(missed, key=lambda mutant: (mutant.path, mutant.line)):
        print(f"{mutant.path}:{mutant.line}\n    {mutant.before}\n    {mutant.after}")
    return share


if __name__ == "__main__":
    for module in SLOW_IMPORTS:
        import_module(module)
    drawn = without_equivalents(
        Mutant(**fields) for fields in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    )
    forked = Runs()
    try:
        unnoticed = survivors(drawn, forked)
    finally:
        forked.end()
    sys.exit(report(drawn, unnoticed) < float(sys.argv[2]))
