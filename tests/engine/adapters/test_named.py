"""The setting that names adapters, and the salts that keep their cached prefixes apart."""

from pathlib import Path

import pytest

from engine.adapters.named import AdapterSalts, named_adapters, read_salts
from engine.errors import BundleError
from engine.request import Request, SamplingParams


def test_names_and_folders() -> None:
    assert named_adapters("") == {}
    assert named_adapters(" a = /x/y , org/b:1=rel=ative ") == {"a": Path("/x/y"), "org/b:1": Path("rel=ative")}


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("a", "'a' is not NAME=FOLDER"),
        ("a=", "'a=' is not NAME=FOLDER"),
        ("=x", "'' is no name"),
        ("a b=x", "'a b' is no name"),
        ("a=x,a=y", "two adapters are called a"),
        ("a=~nobody-here/x", "~nobody-here/x names a home folder that does not exist"),
        (",".join(f"a{index}=x" for index in range(65)), "65 adapters were named, 64 is the most"),
    ],
)
def test_settings_that_are_refused(setting: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        named_adapters(setting)


def request(adapter: str, salt: bytes = b"") -> Request:
    return Request("r", (1,), SamplingParams(1), cache_salt=salt, adapter=adapter)


def test_salts_differ_by_adapter_contents_and_caller(tmp_path: Path) -> None:
    folders = {name: tmp_path / name for name in "ab"}
    for name, folder in folders.items():
        folder.mkdir()
        (folder / "adapter_config.json").write_text("{}")
        (folder / "adapter_model.safetensors").write_text(name)
    salts = read_salts(folders)
    plain = request("", b"caller")
    assert salts.salted(plain) is plain
    found = {salts.salted(request(name, caller)).cache_salt for name in "ab" for caller in (b"", b"caller")}
    (folders["a"] / "adapter_model.safetensors").write_text("c")
    found.add(read_salts(folders).salted(request("a")).cache_salt)
    assert len(found) == 5 and all(0 < len(salt) <= 64 for salt in found)


def test_an_adapter_that_is_not_there() -> None:
    with pytest.raises(ValueError, match="there is no adapter a"):
        AdapterSalts({}).salted(request("a"))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"adapter a: .*adapter_config.json cannot be read: No such file"):
        read_salts({"a": tmp_path / "none"})
