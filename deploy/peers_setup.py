"""What `make bench-peers` needs, made once in one folder: llama-server, a random checkpoint, its GGUF and its bundle.

llama-server comes from the llama.cpp tree inside the llama-cpp-python source distribution, built for this machine.
Whatever is there already is used again, except the bundle: it follows the compiler.
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from rich.console import Console

SOURCE, VERSION = "llama-cpp-python", "0.3.36"
DEPLOY = Path(__file__).resolve().parent
SHAPE = "qwen3-0.6b"
OPTIONS = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_BUILD_TESTS=OFF"),
    *("-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF"),
)


class SetupFailed(Exception):
    """A step did not succeed; the message names it."""


class PeersFolder:
    """The folder that holds everything, with a method for each thing in it."""

    def __init__(self, folder: Path, console: Console) -> None:
        self._folder = folder.absolute()
        self._console = console
        self._folder.mkdir(parents=True, exist_ok=True)

    def llama_server(self) -> Path:
        """The executable; downloads and builds it the first time, which takes 10 minutes or more."""
        return self._program("llama-server")

    def llama_quantize(self) -> Path:
        """llama.cpp's quantiser; built in the same place."""
        return self._program("llama-quantize")

    def llama_imatrix(self) -> Path:
        """What tells the quantiser which inputs matter; built in the same place."""
        return self._program("llama-imatrix")

    def llama_perplexity(self) -> Path:
        """What scores a text; built in the same place."""
        return self._program("llama-perplexity")

    def float_gguf(self, checkpoint: Path, path: Path, *options: str) -> None:
        """Write a checkpoint as a GGUF file of floats. options: more of peers_gguf.py's."""
        self._write_gguf(checkpoint, path, "--floats", *options)

    def _program(self, name: str) -> Path:
        program = self._folder / "build" / "bin" / name
        if not program.is_file():
            tree = self._tree()
            build = self._folder / "build"
            cmake, ninja = self._tools()
            configure = [cmake, "-S", str(tree), "-B", str(build), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
            self._run(f"configure {name}", [*configure, *OPTIONS])
            jobs = str(os.cpu_count() or 1)
            self._run(f"build {name}", [cmake, "--build", str(build), "--target", name, "--parallel", jobs])
        return program

    def checkpoint(self) -> Path:
        """A Hugging Face folder of random weights."""
        folder = self._folder / SHAPE
        if not (folder / "model.safetensors.index.json").is_file():  # written last
            command = [sys.executable, "-m", "engine.compile.random_checkpoint", "--shape", SHAPE, "-o", str(folder)]
            self._run("write the checkpoint", command)
        return folder

    def gguf(self) -> Path:
        """The same weights as Q4_0."""
        path = self._folder / f"{SHAPE}-q4_0.gguf"
        if not path.is_file():
            self._write_gguf(self.checkpoint(), path)
        return path

    def bundle(self, options: str) -> Path:
        """The same weights as a bundle, compiled anew with `options`."""
        folder = self._folder / f"{SHAPE}-bundle"
        command = [sys.executable, "-m", "server", "compile", str(self.checkpoint()), "-o", str(folder), "--force"]
        self._run("compile the bundle", [*command, *options.split()])
        return folder

    def _write_gguf(self, checkpoint: Path, path: Path, *options: str) -> None:
        paths = os.pathsep.join((str(self._tree() / "gguf-py"), os.environ.get("PYTHONPATH", "")))
        command = [sys.executable, str(DEPLOY / "peers_gguf.py"), str(checkpoint), str(path), *options]
        self._run("write the GGUF", command, {"PYTHONPATH": paths.rstrip(os.pathsep)})

    def _tree(self) -> Path:
        name = f"{SOURCE.replace('-', '_')}-{VERSION}"
        tree = self._folder / name / "vendor" / "llama.cpp"
        if not (tree / "CMakeLists.txt").is_file():
            sdist = self._folder / "sdist"
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", SOURCE]
            self._run("download llama.cpp", [*pip, "--dest", str(sdist), f"{SOURCE}=={VERSION}"])
            shutil.unpack_archive(sdist / f"{name}.tar.gz", self._folder, filter="data")
        return tree

    def _tools(self) -> tuple[str, str]:
        """cmake and ninja: the system's, else from wheels in an environment of their own."""
        if shutil.which("c++") is None and shutil.which("g++") is None and shutil.which("clang++") is None:
            raise SetupFailed("llama-server needs a C++ compiler, and none is on PATH")
        found = shutil.which("cmake"), shutil.which("ninja")
        if found[0] and found[1]:
            return found[0], found[1]
        tools = self._folder / "tools"
        if not (tools / "bin" / "ninja").is_file():
            venv.create(tools, with_pip=True)
            self._run(
                "install cmake and ninja", [str(tools / "bin" / "python"), "-m", "pip", "install", "cmake", "ninja"]
            )
        return str(tools / "bin" / "cmake"), str(tools / "bin" / "ninja")

    def _run(self, step: str, command: list[str], variables: dict[str, str] | None = None) -> None:
        self._console.print(f"{step} ...", highlight=False)
        log = self._folder / "log.txt"
        with log.open("wb") as stream:
            done = subprocess.run(
                command, stdout=stream, stderr=subprocess.STDOUT, env=os.environ | (variables or {}), check=False
            )
        if done.returncode:
            last = " ".join(log.read_text(errors="replace").split()[-60:])
            raise SetupFailed(f"{step} failed ({log}): {last}")
