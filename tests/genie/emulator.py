"""The HTP emulator of the onnxruntime-qnn package, in a process of its own: it may die, and it prints banners.

`python -m tests.genie.emulator compile FOLDER` makes a NAME.bin of every NAME.onnx.
`python -m tests.genie.emulator greedy BUNDLE JOBS.json` prints tokens of jobs [prompt, count, prompt rows,
decode rows].
`python -m tests.genie.emulator serve BUNDLE JOBS.json` prints the engine's tokens of prompts that come at once.
"""

import importlib.util
import json
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from engine.bundle.manifest import load_manifest
from engine.runtime.qnn.binary import padded, rename_graphs
from engine.runtime.qnn.provider import HtpTarget, compile_options, open_session, run_options
from engine.runtime.qnn.reader import describe_binary
from tests.genie.generator import Generated
from tests.genie.plain_loop import PlainLoop
from tests.genie.served import served

X_ELITE = HtpTarget(60, 73)
INSTALLED = importlib.util.find_spec("onnxruntime_qnn") is not None
EMULATOR = INSTALLED and (sys.platform, platform.machine()) == ("linux", "x86_64")
ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 300


def compile_demo(folder: Path, *options: str) -> Path:
    """The embedded model by `hexserve compile` for X Elite, as the emulator can load it."""
    command = [sys.executable, "-m", "server", "compile", "demo", "--target", "x-elite", "--one-graph-per-binary"]
    command += ["--context", "256", "--parity-tokens", "2", "--output", str(folder), *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "Genie files" in done.stderr and "Genie cannot" not in done.stderr
    return folder


def compile_generated(made: Generated, scratch: Path) -> None:
    """Replace the placeholders of a folder with one graph for each binary by real context binaries."""
    scratch.mkdir()
    for binary, models in made.models.items():
        (model,) = models.values()
        onnx.save(model, str(scratch / f"{Path(binary).stem}.onnx"))
    _run("compile", scratch)
    for binary, models in made.models.items():
        info = describe_binary(scratch / binary, scratch)
        old, contract = info.graphs[0].name, re.sub(r"^[a-z]+_", "", next(iter(models)))
        rename_graphs(scratch / binary, {old: padded(contract, len(old))})
        (scratch / binary).replace(made.folder / binary)


def emulated_greedy(bundle: Path, jobs: Sequence[tuple[list[int], *tuple[int, ...]]], scratch: Path) -> list[list[int]]:
    """Tokens of jobs (prompt, count, prompt rows, decode rows) by the plain loop over the emulator."""
    path = scratch / "jobs.json"
    path.write_text(json.dumps(jobs))
    return json.loads(_run("greedy", bundle, path).splitlines()[-1])


def emulated_service(bundle: Path, prompts: Mapping[str, list[int]], count: int, scratch: Path) -> dict[str, list[int]]:
    """What the worker's engine makes of prompts over the emulator; greedy."""
    path = scratch / "prompts.json"
    path.write_text(json.dumps([prompts, count]))
    return json.loads(_run("serve", bundle, path).splitlines()[-1])


def _run(*arguments: object) -> str:
    command = [sys.executable, "-m", "tests.genie.emulator", *map(str, arguments)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout


def compile_all(folder: Path) -> None:
    """One context binary for each model, named like it."""
    for path in sorted(folder.glob("*.onnx")):
        wrapper = folder / f"{path.stem}.wrapped.onnx"
        config = {"ep.context_enable": "1", "ep.context_embed_mode": "0", "ep.context_file_path": str(wrapper)}
        open_session(path, compile_options(X_ELITE), config)
        (folder / f"{path.stem}.wrapped_qnn.bin").rename(folder / f"{path.stem}.bin")


def greedy(bundle: Path, jobs: list[Any]) -> list[list[int]]:
    """Tokens of jobs."""
    manifest = load_manifest(bundle)
    sessions = {graph.name: open_session(bundle / graph.file, run_options(X_ELITE), {}) for graph in manifest.graphs}

    def run(name: str, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        names = [item.name for item in sessions[name].get_outputs()]
        return dict(zip(names, sessions[name].run(names, dict(feed)), strict=True))

    return [PlainLoop(manifest, run).greedy(*job) for job in jobs]


if __name__ == "__main__":
    if sys.argv[1] == "compile":
        compile_all(Path(sys.argv[2]))
    elif sys.argv[1] == "serve":
        print(json.dumps(served(Path(sys.argv[2]), *json.loads(Path(sys.argv[3]).read_text()))))
    else:
        print(json.dumps(greedy(Path(sys.argv[2]), json.loads(Path(sys.argv[3]).read_text()))))
