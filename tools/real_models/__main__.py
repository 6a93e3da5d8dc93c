"""`python -m tools.real_models [NAME ...]`: fetch real models into the cache folder; those of the tests take 0.9 GB."""

import argparse
import sys
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from tools.real_models.fetch import FetchFailed, RealModels, default_folder, pinned

TESTED = ("smollm2", "qwen-coder", "gemma", "minilm", "whisper-base", "llama-cpp")
FAILED, INTERRUPTED = 1, 130
COLUMNS = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())


def main() -> int:
    """Fetch what is missing; tell where each model is."""
    parser = argparse.ArgumentParser(prog="python -m tools.real_models", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(pinned())}; default: {TESTED}")
    parser.add_argument("--folder", type=Path, default=default_folder(), help="default: $REAL_MODELS, else %(default)s")
    options = parser.parse_args()
    names = options.names or list(TESTED)
    if unknown := sorted(set(names) - set(pinned())):
        parser.error(f"NAME must be one of {', '.join(pinned())}, not {unknown[0]}")
    console = Console()
    try:
        fetch_all(RealModels(options.folder), names, console)
    except FetchFailed as error:
        console.print(f"error: {error}", markup=False, style="red", soft_wrap=True)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def fetch_all(models: RealModels, names: list[str], console: Console) -> None:
    """With a bar over the bytes of what is missing; a package counts when it is whole."""
    missing = models.missing(names)
    with Progress(*COLUMNS, console=console) as progress:
        for name in missing:
            task = progress.add_task(name, total=models.pins[name].bytes)
            models.fetch(name, partial(progress.advance, task))
    for name in names:
        console.print(f"{name}: {models.path(name)}", markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
