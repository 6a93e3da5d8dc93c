"""A bundle downloaded and unpacked behind progress bars."""

from pathlib import Path
from urllib.parse import urlparse

import httpx
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

from engine.genie.config import is_genie_folder
from engine.hub.catalogue import PullError
from engine.hub.download import TIMEOUT, DownloadProgress, download
from engine.hub.unpack import unpack


def fetch_bundle(url: str, output: Path | None) -> Path:
    """Download and unpack; the bundle's folder. The archive is removed once it is unpacked. Raises PullError."""
    file = Path(urlparse(url).path).name
    folder = output or Path(Path(file).stem)
    if folder.exists():
        raise PullError(f"{folder} exists already; name another folder with --output")
    archive = folder.with_name(file)
    columns = (TextColumn("{task.description:<9}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with (
        httpx.Client(timeout=TIMEOUT) as client,
        Bars(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as bars,
    ):
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
