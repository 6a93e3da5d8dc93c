"""`python -m tests.long.fuzz.warm`: an interpreter that has imported everything and forks once for each case.

Standard input: one JSON object a line, {"kind", "base", "work", "seeds"}. Standard output: one JSON object a case.
A case is killed after 10 s, and gets 1 GiB of memory beyond what the interpreter has.
"""

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.long.fuzz.exercises import EXERCISES, REFUSALS
from tests.long.fuzz.mutations import damage_folder

SECONDS = 10
MEMORY = 1 << 30
NOBODY = 65534
AT_ONCE = 2
LONGEST_SENTENCE = 1500


def main() -> None:
    """Run until end of input."""
    for line in sys.stdin:
        job = json.loads(line)
        seeds, running = list(job["seeds"]), {}
        while seeds or running:
            while seeds and len(running) < AT_ONCE:
                case = _start(job, seeds.pop(0))
                running[case["pid"]] = case
            pid, status, usage = os.wait4(-1, 0)
            print(json.dumps(_outcome(running.pop(pid), status, usage)), flush=True)


def _start(job: dict[str, Any], seed: int) -> dict[str, Any]:
    kind, work = job["kind"], Path(job["work"]) / f"{job['kind']}-{seed}"
    shutil.copytree(job["base"], work / "input")
    (work / "scratch").mkdir()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        _run(kind, seed, work)
    return {"pid": pid, "seed": seed, "work": str(work)}


def _run(kind: str, seed: int, work: Path) -> None:
    """The child: never returns."""
    try:
        _damage(kind, seed, work)
        result = _result(kind, work)
    except BaseException:  # noqa: BLE001 (nothing may return into the parent's loop)
        result = ["broken", traceback.format_exc()[-3000:]]
    (work / "answer").write_text(json.dumps(result))
    os._exit(0)


def _damage(kind: str, seed: int, work: Path) -> None:
    chance = random.Random(f"{kind} {seed}")
    told = damage_folder(work / "input", chance, EXERCISES[kind].main, work / "outside")
    (work / "damage").write_text(json.dumps(told))


def _result(kind: str, work: Path) -> list[str]:
    """How it ended and what was said, within the limits."""
    signal.alarm(SECONDS)
    output = os.open(work / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    with contextlib.suppress(OSError):
        _become_nobody(work)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, held + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        EXERCISES[kind].use(work / "input", work / "scratch")
    except REFUSALS as error:
        return ["refused", str(error)]
    return ["used", ""]


def _become_nobody(work: Path) -> None:
    """Root may read everything: without this no file is unreadable."""
    if os.geteuid() == 0:
        work.chmod(0o777)
        (work / "scratch").chmod(0o777)
        for name in ("output", "answer"):
            (work / name).touch()
            (work / name).chmod(0o666)
        for path in (work / "input", *(work / "input").rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        os.setegid(NOBODY)
        os.seteuid(NOBODY)


def _outcome(case: dict[str, Any], status: int, usage: resource.struct_rusage) -> dict[str, Any]:
    work = Path(case["work"])
    try:
        end, text = json.loads((work / "answer").read_text())
    except (OSError, ValueError):
        end, text = "broken", "it hung" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM else ""
        text = text or f"the process ended with status {status}"
    printed = (work / "output").read_text(errors="replace") if (work / "output").exists() else ""
    if end == "refused" and (not text.strip() or len(text) > LONGEST_SENTENCE or "\n" in text):
        end, text = "broken", f"not one sentence: {text[:LONGEST_SENTENCE]!r}"
    if end != "broken" and ("Traceback" in printed or "Warning" in printed):
        end, text = "broken", printed[-3000:]
    damage = json.loads((work / "damage").read_text()) if (work / "damage").exists() else ["not told"]
    for path in (work / "input", *(work / "input").glob("*")):
        if not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(work, ignore_errors=True)
    return {"seed": case["seed"], "damage": damage, "end": end, "text": text, "mib": usage.ru_maxrss >> 10}


if __name__ == "__main__":
    main()
