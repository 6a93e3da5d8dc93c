"""`python -m tools.llama_cpp FIGURES`: measure with llama.cpp's own programs what its files lose, and store that.

Builds llama.cpp the first time. Takes an hour and more on two cores, and 4 GB of disk.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console

from tools.llama_cpp.fidelity import PUBLISHED_ALONE, Measurement, measured
from tools.llama_cpp.figures import LlamaFigures
from tools.llama_cpp.programs import BuildFailed, LlamaCpp
from tools.real_models.fetch import FetchFailed, RealModels, default_folder
from tools.real_models.held_out import HeldOutChanged, held_out_text

MODELS, TREE = ("smollm2", "qwen-coder"), "llama-cpp"
FAILED, INTERRUPTED = 1, 130


def main() -> int:
    """Measure, then write the file whole."""
    parser = argparse.ArgumentParser(prog="python -m tools.llama_cpp", description=__doc__)
    parser.add_argument("figures", type=Path, metavar="FIGURES", help="a JSON file")
    parser.add_argument("--folder", type=Path, default=default_folder(), help="of the real models")
    options, console = parser.parse_args(), Console()
    try:
        say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
        found = measure(RealModels(options.folder), say)
    except (BuildFailed, FetchFailed, HeldOutChanged) as error:
        console.print(f"error: {error}", markup=False, style="red", soft_wrap=True)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    options.figures.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
    return 0


def measure(models: RealModels, say: Callable[[str], None]) -> LlamaFigures:
    """What FIGURES holds, of the models in the cache folder. Raises what its steps raise."""
    tree, scratch = models.fetch(TREE), models.folder / "fidelity"
    scratch.mkdir(exist_ok=True)
    text = scratch / "held-out.txt"
    text.write_text(held_out_text(tree), encoding="utf-8", newline="\n")
    programs = LlamaCpp(tree, models.folder / "llama.cpp-build", say)
    names = (*MODELS, *PUBLISHED_ALONE)
    measurements = [Measurement(name, models.fetch(name), programs, scratch / name, say) for name in names]
    package = models.pins[TREE].packages[0]
    return measured(measurements, text, f"{package.name} {package.version}")


if __name__ == "__main__":
    sys.exit(main())
