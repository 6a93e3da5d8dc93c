"""An nginx to run: the machine's own, or the one in Debian's package, unpacked below `.venv`."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PLACE = Path(sys.prefix) / "nginx"


def nginx_program() -> str:
    """Path of the program. RuntimeError with what apt said when there is none."""
    found = shutil.which("nginx")
    if found is not None:
        return found
    if not PLACE.exists():
        _unpack()
    return str(PLACE / "usr" / "sbin" / "nginx")


def _unpack() -> None:
    draft = Path(tempfile.mkdtemp(prefix="nginx-", dir=PLACE.parent))
    try:
        if _run(["apt-get", "download", "nginx"], draft) is not None:
            _run(["apt-get", "-q", "update"], draft)
            if (said := _run(["apt-get", "download", "nginx"], draft)) is not None:
                raise RuntimeError(f"install nginx: Debian's package cannot be had here\n{said}")
        (package,) = draft.glob("nginx_*.deb")
        said = _run(["dpkg-deb", "--extract", str(package), str(draft / "root")], draft)
        assert said is None, said
        if not PLACE.exists():
            (draft / "root").rename(PLACE)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _run(command: list[str], folder: Path) -> str | None:
    """None when it worked, else what it wrote."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return None if done.returncode == 0 else done.stdout + done.stderr
