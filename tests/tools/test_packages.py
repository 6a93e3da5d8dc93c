"""uv looks where pip is told to look, and pip's own words say where that is."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tools.packages import environment, pip_configuration, settings_of_uv


def test_what_pip_is_told_by_a_file_and_by_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By pip itself: a variable comes over the file, several places stand on lines of their own."""
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = https://one/simple\nextra-index-url =\n  https://two/simple\n  https://three/simple\n"
        "find-links = /a /b\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    for name in ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "NO_INDEX"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "https://mine/simple")
    found = settings_of_uv(pip_configuration())
    assert {name: value for name, value in found.items() if name != "SSL_CERT_FILE"} == {
        "UV_DEFAULT_INDEX": "https://mine/simple",
        "UV_INDEX": "https://two/simple https://three/simple",
        "UV_FIND_LINKS": "/a,/b",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }


def test_a_failure_is_told(tmp_path: Path) -> None:
    words = ["--no-index", "--no-deps", "hexserve-no-such-package"]
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    python = tmp_path / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    done = subprocess.run(
        [sys.executable, "-m", "tools.packages", python, *words],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode and "hexserve-no-such-package" in done.stderr


def test_an_environment_is_made_anew_where_its_packages_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has them is used again; a failure leaves none that counts as made."""
    made = venv.create
    monkeypatch.setattr(venv, "create", lambda *places, **options: made(*places, **{**options, "with_pip": False}))
    (tmp_path / "packages.txt").write_text("a==1\nb")
    python = environment(tmp_path, "a==1", "b")
    assert python.is_relative_to(tmp_path) and not python.exists()
    for _ in range(2):
        with pytest.raises(OSError, match="hexserve-no-such-package could not be installed"):
            environment(tmp_path, "hexserve-no-such-package", "--no-index", "--no-deps")
        assert python.exists() and not (tmp_path / "packages.txt").exists()
