"""`python -m tools.fidelity`: the KL of what a client is served, beside llama.cpp's on the same files and tokens.

Of both published files, and with --made of Q4_0, Q8_0 and F16 versions that llama-quantize makes of them. With
--context N in windows of N tokens, of gemma too. Ends with 1 when a file loses more than the bar allows.
"""

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from rich.console import Console
from rich.table import Table

from server.commands.tables import table, wide_console
from tools.fidelity.served import ServedFile, read_as_served
from tools.llama_cpp.__main__ import MODELS, TREE
from tools.llama_cpp.fidelity import CONTEXT, OWN, PUBLISHED, WINDOWS, Measurement, ReadWindows
from tools.llama_cpp.figures import LlamaFigures, PrintedMean
from tools.llama_cpp.programs import LlamaCpp
from tools.real_models.fetch import RealModels, default_folder
from tools.real_models.held_out import held_out_text

BAR = 1.1  # times llama.cpp's KL
MADE = ("Q4_0", "Q8_0", "F16")  # by llama-quantize
FIGURES = Path(__file__).parents[2] / "tests" / "real" / "llama_cpp_figures.json"


@dataclass(frozen=True, slots=True)
class FileBeside:
    """One file on both sides. theirs: llama.cpp's KL on the same windows; same_top: how often its likeliest token is
    that of the floats."""

    model: str
    kind: str
    theirs: float
    same_top: PrintedMean
    ours: ServedFile

    @property
    def ratio(self) -> float:
        """Our KL over llama.cpp's."""
        assert self.ours.quality.kl is not None
        return self.ours.quality.kl.value / self.theirs

    @property
    def holds(self) -> bool:
        """Whether the bar is held."""
        return self.ratio <= BAR


def main() -> int:
    """Measure file after file, print the table."""
    parser = argparse.ArgumentParser(prog="python -m tools.fidelity", description=__doc__)
    parser.add_argument("--folder", type=Path, default=default_folder(), help="of the real models")
    parser.add_argument("--models", default=",".join(MODELS), help="which of them")
    parser.add_argument("--context", type=int, help="tokens of a window, instead of 512: llama.cpp then runs beside")
    parser.add_argument("--made", action="store_true", help="also files made by llama-quantize, which is built first")
    options, console = parser.parse_args(), wide_console()
    if options.context and options.made:
        parser.error("--context measures the published file: leave out --made")
    models = RealModels(options.folder)
    kinds = (PUBLISHED, *MADE) if options.made else (PUBLISHED,)
    names = options.models.split(",")
    if options.context:
        found = [at_context(models, name, options.context, console) for name in names]
    else:
        found = list(measured(models, names, kinds, console))
    console.print(table_of(found))
    return 0 if all(each.holds for each in found) else 1


def measured(models: RealModels, names: list[str], kinds: tuple[str, ...], console: Console) -> Iterator[FileBeside]:
    """Each file through both, in order. Raises what fetching, building, compiling and serving raise."""
    figures = msgspec.json.decode(FIGURES.read_bytes(), type=LlamaFigures)
    text, say, programs = _beside(models, console)
    for name in names:
        for kind in kinds:
            with TemporaryDirectory(prefix="hexserve-") as folder:
                file = models.fetch(name)
                if kind != PUBLISHED:
                    file = programs.quantised(file, Path(folder) / f"{kind}.gguf", kind)
                say(f"{name} {kind}")
                theirs = figures.of(name, kind)
                (ours,) = read_as_served([file], text, figures.context, figures.windows, Path(folder))
                yield FileBeside(name, kind, theirs.kl.mean, theirs.same_top, ours)


def at_context(models: RealModels, name: str, context: int, console: Console) -> FileBeside:
    """The published file in windows of `context` tokens, both sides measured now. Raises what `measured` does."""
    text, say, programs = _beside(models, console)
    windows = ReadWindows(context, CONTEXT * WINDOWS // context)
    with TemporaryDirectory(prefix="hexserve-") as scratch:
        folder, file = Path(scratch), models.fetch(name)
        (path := folder / "text").write_text(text, encoding="utf-8", newline="\n")
        theirs = Measurement(name, file, programs, folder / "llama", say, windows).one(path, PUBLISHED, OWN)
        shutil.rmtree(folder / "llama")
        (ours,) = read_as_served([file], text, context, windows.count, folder)
    return FileBeside(name, f"{PUBLISHED}, {context} tokens", theirs.kl.mean, theirs.same_top, ours)


def _beside(models: RealModels, console: Console) -> tuple[str, Callable[[str], None], LlamaCpp]:
    """The text that both sides read, how to tell each step, and llama.cpp's programs."""
    say, tree = partial(console.print, markup=False, highlight=False, soft_wrap=True), models.fetch(TREE)
    return held_out_text(tree), say, LlamaCpp(tree, models.folder / "llama.cpp-build", say)


def table_of(found: list[FileBeside]) -> Table:
    """One row for each file."""
    names = ("file", "caches", "llama.cpp", "hexserve", "95 %", "ratio")
    headings = (*names, "its top-1", "top-1", "perplexity loss", "tokens")
    return table(headings, map(_cells, found), "KL of what is served against the file's own floats", words=2)


def _cells(each: FileBeside) -> tuple[str, ...]:
    quality = each.ours.quality
    assert quality.kl and quality.top1 and quality.perplexity_loss
    return (
        f"{each.model} {each.kind}",
        each.ours.kv,
        f"{each.theirs:.2e}",
        f"{quality.kl.value:.2e}",
        f"{quality.kl.low:.1e}..{quality.kl.high:.1e}",
        f"{each.ratio:.2f}{'' if each.holds else ' (bar missed)'}",
        f"{100 * each.same_top.mean:.2f} %",
        f"{100 * quality.top1.value:.2f} %",
        f"{100 * quality.perplexity_loss.value:.2f} %",
        f"{quality.tokens:,}",
    )


if __name__ == "__main__":
    sys.exit(main())
