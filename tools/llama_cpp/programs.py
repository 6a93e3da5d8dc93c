"""llama.cpp's programs, built once for this machine out of a source tree; what is built already is used again."""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from filelock import FileLock

OPTIONS = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_TESTS=OFF"),
    *("-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF"),
    "-DCMAKE_CXX_FLAGS=-fno-dse",  # gcc 12 drops what its own _tile_loadconfig reads: AMX would crash
)
COMPILERS = ("c++", "g++", "clang++")


class BuildFailed(Exception):
    """A step did not succeed; the message names it."""


class LlamaCpp:
    """The programs of one source tree. folder: gets the build and a log. say: told each step as it begins.

    options: of cmake, beside our own.
    """

    def __init__(self, tree: Path, folder: Path, say: Callable[[str], None], options: Sequence[str] = ()) -> None:
        self.tree = tree.absolute()
        self._folder = folder.absolute()
        self._say = say
        self._options = (*OPTIONS, *options)

    def program(self, name: str) -> Path:
        """The executable, such as llama-perplexity; the first one takes 10 minutes or more."""
        built = self._folder / "bin" / name
        self._folder.mkdir(parents=True, exist_ok=True)
        with FileLock(self._folder / ".lock"):
            if not built.is_file():
                cmake, ninja = self._tools()
                places = ["-S", str(self.tree), "-B", str(self._folder), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
                self._run(f"configure {name}", [cmake, *places, *self._options])
                jobs = str(os.cpu_count() or 1)
                self._run(f"build {name}", [cmake, "--build", str(self._folder), "--target", name, "--parallel", jobs])
        return built

    def quantised(self, source: Path, made: Path, kind: str) -> Path:
        """`made`, which llama-quantize makes of a GGUF file in another kind of blocks, such as F32. BuildFailed."""
        command = [str(self.program("llama-quantize")), "--allow-requantize", str(source), str(made), kind]
        self._run(f"{kind} of {source.name}", command)
        return made

    def _tools(self) -> tuple[str, str]:
        """cmake and ninja: the system's, else from wheels in an environment of their own."""
        if not any(map(shutil.which, COMPILERS)):
            raise BuildFailed("llama.cpp needs a C++ compiler, and none is on PATH")
        found = shutil.which("cmake"), shutil.which("ninja")
        if found[0] and found[1]:
            return found[0], found[1]
        programs = self._folder / "tools" / ("Scripts" if sys.platform == "win32" else "bin")
        if not (cmake := shutil.which("cmake", path=programs)) or not (ninja := shutil.which("ninja", path=programs)):
            venv.create(self._folder / "tools", with_pip=True)
            self._run("install cmake and ninja", [str(programs / "python"), "-m", "pip", "install", "cmake", "ninja"])
            return str(programs / "cmake"), str(programs / "ninja")
        return cmake, ninja

    def _run(self, step: str, command: list[str]) -> None:
        run_step(step, command, self._folder / "log.txt", self._say)


def run_step(
    step: str, command: list[str], log: Path, say: Callable[[str], None], variables: dict[str, str] | None = None
) -> None:
    """Run a command whose output goes to `log`. BuildFailed with the last of it when it does not succeed."""
    say(f"{step} ...")
    with log.open("wb") as stream:
        done = subprocess.run(
            command, stdout=stream, stderr=subprocess.STDOUT, env=os.environ | (variables or {}), check=False
        )
    if done.returncode:
        last = " ".join(log.read_text(errors="replace").split()[-60:])
        raise BuildFailed(f"{step} failed ({log}): {last}")
