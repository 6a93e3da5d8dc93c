"""Greedy tokens from libGenie, Qualcomm's own engine, in a process of its own.

`python -m tests.genie.oracle BUNDLE JOBS.json` prints the tokens of jobs [prompt, count]. Genie puts BOS before a
prompt of tokens by itself. Its C interface is public: GenieDialog.h, GenieCommon.h.
"""

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path

from engine.qnn.library import library_folder, library_path

ROOT = Path(__file__).resolve().parents[2]
SENTENCE_COMPLETE = 0
TIMEOUT_S = 300


def genie_greedy(bundle: Path, jobs: list[tuple[list[int], int]], scratch: Path) -> list[list[int]]:
    """Tokens of jobs (prompt without BOS, count)."""
    path = scratch / "oracle_jobs.json"
    path.write_text(json.dumps(jobs))
    folder = library_folder()
    search = [str(folder), str(folder.parent / "onnxruntime_qnn.libs"), os.environ.get("LD_LIBRARY_PATH", "")]
    result = subprocess.run(
        [sys.executable, "-m", "tests.genie.oracle", str(bundle.resolve()), str(path)],
        cwd=ROOT,
        env={**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, search))},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


class Genie:
    """One dialog of libGenie."""

    def __init__(self, config: str) -> None:
        for stem in ("QnnSystem", "QnnHtp"):
            ctypes.CDLL(str(library_path(stem)), mode=ctypes.RTLD_GLOBAL)
        self._library = ctypes.CDLL(str(library_path("Genie")))
        handle, self._dialog = ctypes.c_void_p(), ctypes.c_void_p()
        self._check("config", self._library.GenieDialogConfig_createFromJson(config.encode(), ctypes.byref(handle)))
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


def main(bundle: Path, jobs: list[tuple[list[int], int]]) -> None:
    """Run the jobs from inside the bundle, as Genie's paths are relative to the working folder."""
    os.chdir(bundle)
    config = json.loads(Path("genie_config.json").read_text())
    config["dialog"]["sampler"] = {"version": 1, "seed": 42, "temp": 1.0, "top-k": 1, "top-p": 1.0}
    genie = Genie(json.dumps(config))
    print(json.dumps([genie.greedy(prompt, count) for prompt, count in jobs]), flush=True)
    os._exit(0)  # the emulator's threads outlive the dialog


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
