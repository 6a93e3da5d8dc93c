"""What `make bench-peers` needs, made once in one folder: llama-server, a random checkpoint, its GGUF and its bundle.

Whatever is there already is used again, except the bundle: it follows the compiler.
"""

import os
import sys
from pathlib import Path

from rich.console import Console

DEPLOY = Path(__file__).resolve().parent
sys.path[:0] = [str(DEPLOY.parent)]

from tools.llama_cpp.programs import BuildFailed, LlamaCpp, run_step  # noqa: E402
from tools.real_models.fetch import FetchFailed, RealModels  # noqa: E402
from tools.real_models.packages import pinned  # noqa: E402

LLAMA_CPP = "llama-cpp"
SOURCE, VERSION = (getattr(pinned()[LLAMA_CPP].packages[0], field) for field in ("name", "version"))
SHAPE = "qwen3-0.6b"


class SetupFailed(Exception):
    """A step did not succeed; the message names it."""


class PeersFolder:
    """The folder that holds everything, with a method for each thing in it."""

    def __init__(self, folder: Path, console: Console) -> None:
        self._folder = folder.absolute()
        self._console = console
        self._folder.mkdir(parents=True, exist_ok=True)
        self._models = RealModels(self._folder)
        self._llama = LlamaCpp(self._models.path(LLAMA_CPP), self._folder / "build", self._say)

    def llama_server(self) -> Path:
        """The executable; downloads and builds it the first time, which takes 10 minutes or more."""
        return self._program("llama-server")

    @property
    def llama(self) -> LlamaCpp:
        """llama.cpp's programs and sources."""
        self._fetch_tree()
        return self._llama

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
        self._fetch_tree()
        try:
            return self._llama.program(name)
        except BuildFailed as error:
            raise SetupFailed(str(error)) from None

    def _fetch_tree(self) -> None:
        try:
            self._models.fetch(LLAMA_CPP)
        except FetchFailed as error:
            raise SetupFailed(str(error)) from None

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

    def bundle(self, source: Path, options: str) -> Path:
        """A checkpoint or a GGUF file as a bundle, compiled anew with `options`."""
        folder = self._folder / f"{source.stem}-bundle"
        command = [sys.executable, "-m", "server", "compile", str(source), "-o", str(folder), "--force"]
        self._run("compile the bundle", [*command, *options.split()])
        return folder

    def _write_gguf(self, checkpoint: Path, path: Path, *options: str) -> None:
        self._fetch_tree()
        paths = os.pathsep.join((str(self._llama.tree / "gguf-py"), os.environ.get("PYTHONPATH", "")))
        command = [sys.executable, str(DEPLOY / "peers_gguf.py"), str(checkpoint), str(path), *options]
        self._run("write the GGUF", command, {"PYTHONPATH": paths.rstrip(os.pathsep)})

    def _say(self, step: str) -> None:
        self._console.print(step, highlight=False)

    def _run(self, step: str, command: list[str], variables: dict[str, str] | None = None) -> None:
        try:
            run_step(step, command, self._folder / "log.txt", self._say, variables)
        except BuildFailed as error:
            raise SetupFailed(str(error)) from None
