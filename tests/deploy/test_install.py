"""The installers: `install.sh` from an empty home with uv or Python alone; `install.ps1` as far as Linux can tell."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
posix = pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")


def install(home: Path, programs: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """As a user who has nothing but this home and these programs."""
    kept = {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "UV_"))}
    return subprocess.run(
        ["sh", str(DEPLOY / "install.sh"), *arguments],
        capture_output=True, text=True, check=False,
        env={**kept, "PIP_COMPILE": "0", "HOME": str(home), "PATH": str(programs)},  # only what is run is compiled
    )  # fmt: skip


def folder_of(place: Path, **programs: str | Path) -> Path:
    """A PATH with these programs and the few that a script needs."""
    place.mkdir()
    for name in ("sh", "dirname", "mkdir", "ln", "uname"):
        (place / name).symlink_to(str(shutil.which(name)))
    for name, target in programs.items():
        (place / name).symlink_to(target)
    return place


@posix
def test_what_is_missing_or_unknown_is_one_sentence(tmp_path: Path) -> None:
    programs = folder_of(tmp_path / "bin")
    (programs / "python3").write_text("#!/bin/sh\nexit 1\n")  # too old
    (programs / "python3").chmod(0o755)
    for words, reason in (
        ([], "error: neither uv nor Python 3.11 to 3.13 was found: install one of them and run this again\n"),
        (["--gpu"], "error: deploy/install.sh takes --npu and nothing else\n"),
        (["--npu", "--npu"], "error: deploy/install.sh takes --npu and nothing else\n"),
    ):
        done = install(tmp_path, programs, *words)
        assert (done.returncode, done.stderr) == (1, reason)
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


UV = r"""#!/bin/sh
echo "$@" >> "$HOME/calls"
[ "$1" = venv ] || exit 0
for place; do :; done
mkdir -p "$place/bin"
printf '#!/bin/sh\n[ "$2" != ensurepip ]\n' > "$place/bin/python"
printf '#!/bin/sh\n' > "$place/bin/hexserve"
chmod +x "$place/bin/python" "$place/bin/hexserve"
"""


@posix
def test_a_python_without_ensurepip_gets_its_pip_from_uv(tmp_path: Path) -> None:
    programs = folder_of(tmp_path / "bin", chmod=str(shutil.which("chmod")))
    (programs / "uv").write_text(UV)
    (programs / "uv").chmod(0o755)
    done = install(tmp_path, programs)
    assert done.returncode == 0, done.stderr
    python = tmp_path / ".local" / "share" / "hexserve" / "env" / "bin" / "python"
    assert (tmp_path / "calls").read_text().splitlines()[1:] == [f"pip install --quiet --python {python} pip"]


def test_both_installers_install_the_same() -> None:
    texts = [(DEPLOY / name).read_text(encoding="utf-8") for name in ("install.sh", "install.ps1")]
    for words in (
        r"--require-hashes\W+-r\W.*compile\.txt",
        r"--require-hashes\W+-r\W.*qnn\.txt",
        r"--no-build-isolation\W+--no-deps\W+\$project",
        r"3\.11.* 3\.13",
        r"uv\W+venv\W+--quiet\W+--clear",
        r"-m\W+ensurepip",
    ):
        assert all(re.search(words, text) for text in texts), words
