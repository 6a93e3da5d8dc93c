"""A source tree out of a source distribution, and a package as it is."""

import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from engine.sources.packaged import UnpackFailed


def take_tree(archives: Sequence[Path], folder: str, draft: Path) -> None:
    """Make `draft` of the folder below each archive's one folder. A form of `engine.sources.packaged`."""
    for path in archives:
        with tempfile.TemporaryDirectory(dir=draft.parent) as whole, tarfile.open(path) as archive:
            archive.extractall(whole, filter=_ageless)
            found = list(Path(whole).glob(f"*/{folder}"))
            if len(found) != 1:
                raise UnpackFailed(f"{path.name} has {len(found)} folders that fit {folder}, not one")
            # It points to a repository that is not here, and the build would wait for that to appear.
            (found[0] / ".git").unlink(missing_ok=True)
            found[0].rename(draft)


def take_file(archives: Sequence[Path], member: str, draft: Path) -> None:
    """Keep the one archive. A form of `engine.sources.packaged`."""
    (path,) = archives
    shutil.copyfile(path, draft)


def _ageless(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    """What `data` lets through, without its time: a file from the future would be built again and again."""
    safe = tarfile.data_filter(member, path)
    return safe.replace(mtime=None, deep=False)  # type: ignore[arg-type]  # None is documented, typeshed lacks it
