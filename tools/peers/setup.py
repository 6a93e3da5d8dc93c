"""What a comparison with llama.cpp needs, in one folder: its programs, and a bundle of the same file."""

import sys
from functools import partial
from pathlib import Path

from rich.console import Console

from tools.llama_cpp.programs import LlamaCpp, run_step
from tools.real_models.fetch import RealModels, default_folder, pinned

LLAMA_CPP = "llama-cpp"
SOURCE, VERSION = (getattr(pinned()[LLAMA_CPP].packages[0], field) for field in ("name", "version"))


class PeersFolder:
    """The folder that holds the builds and the bundle, with a method for each thing in it. BuildFailed, FetchFailed."""

    def __init__(self, folder: Path, console: Console) -> None:
        self.folder = folder.absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._say = partial(console.print, highlight=False)

    @property
    def scratch(self) -> Path:
        """A place for gigabytes that nobody needs afterwards."""
        return self.folder / "scratch"

    @property
    def llama(self) -> LlamaCpp:
        """llama.cpp's programs and sources; the sources are fetched the first time."""
        return LlamaCpp(RealModels(default_folder()).fetch(LLAMA_CPP), self.folder / "build", self._say)

    def quantised(self, source: Path, kind: str) -> Path:
        """A GGUF file in another kind of blocks, such as F32, as llama-quantize makes it."""
        made = self.folder / f"{source.stem}-{kind}.gguf"
        if not made.is_file():
            self.llama.quantised(source, made.with_suffix(".draft"), kind).rename(made)
        return made

    def bundle(self, source: Path, options: str) -> Path:
        """A GGUF file as a bundle, compiled anew with `options`: it follows the compiler."""
        folder = self.folder / f"{source.stem}-bundle"
        command = [sys.executable, "-m", "server", "compile", str(source), "-o", str(folder), "--force"]
        run_step("compile the bundle", [*command, *options.split()], self.folder / "log.txt", self._say)
        return folder
