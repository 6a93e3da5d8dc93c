"""`hexserve pull NAME`: a ready X Elite bundle from Qualcomm AI Hub."""

import sys
from pathlib import Path
from typing import Annotated
from urllib.parse import urlparse

import httpx
import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

from engine.genie.config import is_genie_folder
from engine.hub.catalogue import PRECISIONS, X_ELITE, PullError, find_bundle
from engine.hub.download import TIMEOUT, DownloadProgress, download
from engine.hub.unpack import unpack

FAILED = 1


def pull(
    name: Annotated[str, typer.Argument(help="Model as Qualcomm AI Hub names it, such as qwen3_4b.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Folder to make.")] = None,
    precision: Annotated[str | None, typer.Option(help="w4a16 or w4 instead of the first that exists.")] = None,
    chipset: Annotated[str, typer.Option(help="Chipset the binaries are for.")] = X_ELITE,
) -> None:
    """Fetch a ready bundle from Qualcomm AI Hub; an interrupted fetch goes on where it stopped."""
    try:
        url = find_bundle(name, chipset, (precision,) if precision else PRECISIONS)
        with httpx.Client(timeout=TIMEOUT) as client:
            folder = fetch_bundle(url, output, client, Console(stderr=True))
    except PullError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(FAILED) from None
    print(f"{folder} is ready: hexserve serve {folder}")


def fetch_bundle(url: str, output: Path | None, client: httpx.Client, console: Console) -> Path:
    """Download and unpack; the bundle's folder. The archive is removed once it is unpacked. Raises PullError."""
    file = Path(urlparse(url).path).name
    folder = output or Path(Path(file).stem)
    if folder.exists():
        raise PullError(f"{folder} exists already; name another folder with --output")
    archive = folder.with_name(file)
    columns = (TextColumn("{task.description:<9}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bars(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bars:
        fetching = bars.add_task("fetching", total=None)

        def start(total: int, done: int) -> None:
            bars.update(fetching, total=total or None, completed=done)

        progress = DownloadProgress(start, lambda amount: bars.advance(fetching, amount))
        download(url, archive, progress, client)
        unpacking = bars.add_task("unpacking", total=None)
        unpack(archive, folder, lambda amount: bars.advance(unpacking, amount))
    archive.unlink(missing_ok=True)
    if not is_genie_folder(folder):
        raise PullError(f"{folder} was fetched, but it is no Genie bundle (it has no genie_config.json)")
    return folder
