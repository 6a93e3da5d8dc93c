"""Where the browser of the page's checks comes from: a named one, an installed one, Debian's, or a sentence."""

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parent / "page" / "chromium.py"


@pytest.fixture
def chromium(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The file as its checks import it, with a place of its own and no browser on the machine."""
    spec = importlib.util.spec_from_file_location("chromium_of_the_page", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PLACE", tmp_path / "chromium")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("TEST_BROWSER", raising=False)
    return module


def test_a_named_browser_is_taken(chromium: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_BROWSER", "/opt/browser")
    assert chromium.find_chromium().program == "/opt/browser"


def test_an_installed_one_is_taken(chromium: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", {"google-chrome": "/usr/bin/google-chrome"}.get)
    assert chromium.find_chromium().program == "/usr/bin/google-chrome"


def test_without_apt_a_sentence_says_what_to_do(chromium: ModuleType) -> None:
    with pytest.raises(chromium.NoBrowserError, match="install it, or name a browser in the variable TEST_BROWSER"):
        chromium.find_chromium()


@pytest.mark.parametrize("user", [0, 1000])
def test_without_a_network_apt_is_quoted_and_nothing_is_left(
    chromium: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, user: int
) -> None:
    broken = tmp_path / "bin" / "apt-get"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\necho 'Could not resolve the mirror' >&2\nexit 100\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken.parent}:/bin:/usr/bin")
    monkeypatch.setattr(shutil, "which", {"apt-get": str(broken)}.get)
    monkeypatch.setattr("os.geteuid", lambda: user)
    with pytest.raises(chromium.NoBrowserError, match=r"Chromium cannot be had(.|\n)*Could not resolve the mirror"):
        chromium.find_chromium()
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_an_install_that_was_stopped_is_mended(
    chromium: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As dpkg has it: apt refuses everything until `dpkg --configure -a` has run."""
    programs = tmp_path / "bin"
    programs.mkdir()
    scripts = {
        "dpkg": f'[ "$*" = "--configure -a" ] && touch {programs}/mended',
        "apt-get": f"[ -e {programs}/mended ] && touch {programs}/chromium",
    }
    for name, script in scripts.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/bin:/usr/bin")
    monkeypatch.setattr(shutil, "which", lambda name: str(programs / name) if (programs / name).exists() else None)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert chromium.find_chromium().program == str(programs / "chromium")


def test_an_unpacked_one_brings_its_libraries_and_fonts(chromium: ModuleType) -> None:
    library = chromium.PLACE / "usr" / "lib" / "x86_64-linux-gnu" / "libx.so.1"
    program = chromium.PLACE / "usr" / "lib" / "chromium" / "chromium"
    for file in (library, program):
        file.parent.mkdir(parents=True)
        file.touch()
    found = chromium.find_chromium()
    assert found.program == str(program)
    assert str(library.parent) in found.variables["LD_LIBRARY_PATH"].split(":")
    assert str(chromium.PLACE) in Path(found.variables["FONTCONFIG_FILE"]).read_text()
