"""A folder that is all pip finds packages in, and wheels for it."""

import io
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from engine.sources.packaged import PinnedPackage


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all pip finds packages in."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def wheel(index: Path, name: str, files: dict[str, bytes]) -> PinnedPackage:
    """Put a wheel there, and pin it."""
    path = index / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return pin(name, path)


def pin(name: str, path: Path) -> PinnedPackage:
    return PinnedPackage(name, "1.0", path.stat().st_size, sha256(path.read_bytes()).hexdigest())


def zipped(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)
    return stream.getvalue()
