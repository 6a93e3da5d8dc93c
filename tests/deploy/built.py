"""The project's distributions, built from the files that git knows and nothing else."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Compressed little: what is asked is what is in them.
BUILD = """
import sys, zlib
squeeze = zlib.compressobj
zlib.compressobj = lambda level=1, *rest: squeeze(1, *rest)
from setuptools import build_meta
print(getattr(build_meta, sys.argv[1])(sys.argv[2]))
"""


def tracked(*places: str) -> list[str]:
    """Files of the repository that are there, below these places."""
    listed = subprocess.run(["git", "ls-files", *places], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if (ROOT / name).is_file()]


def build(kind: str, folder: Path) -> Path:
    """The archive in `folder`. kind: sdist or wheel."""
    project = folder / "project"
    for file in tracked():
        (project / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / file, project / file)
    command = [sys.executable, "-W", "ignore", "-c", BUILD, f"build_{kind}", str(folder)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / done.stdout.splitlines()[-1]
