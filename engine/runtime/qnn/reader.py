"""Descriptions of context binaries: made in a process of their own, because a damaged binary kills it, and cached."""

import hashlib
import os
import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from engine.errors import BundleError
from engine.files import MANIFEST_BYTES, open_regular, read_bytes, reading, write_whole
from engine.processes import child_environment, exit_text, module_command
from engine.runtime.qnn.binary import BinaryInfo
from engine.runtime.qnn.describe import REFUSED
from engine.runtime.qnn.environment import configured_folder, library_folder, package_version

TIMEOUT_S = 300.0
CACHE_FOLDER = "binaries"
FORMAT = 1


def describe_binary(path: Path, cache: Path, command: Sequence[str] = (), timeout_s: float = TIMEOUT_S) -> BinaryInfo:
    """Graphs and tensors of a context binary. BundleError says why it cannot be read.
    cache: folder for descriptions; they are made again when path, size, time or library version differ. command: what
    describes a file given as its last argument, () = `python -m engine.runtime.qnn.describe`."""
    with reading(path), open_regular(path) as stream:
        status = os.fstat(stream.fileno())
    if not status.st_size:
        raise BundleError(f"{path.name} is empty")
    reader = (package_version(), str(configured_folder(os.environ) or ""))
    facts = (FORMAT, str(path.resolve()), status.st_size, status.st_mtime_ns, reader)
    key = hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:24]
    cached = cache / CACHE_FOLDER / f"{key}.json"
    with suppress(OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
        return msgspec.json.decode(read_bytes(cached, MANIFEST_BYTES), type=BinaryInfo)
    found = _run(path, command or module_command("engine.runtime.qnn.describe"), timeout_s)
    with suppress(OSError):  # a cache that cannot be written costs time, not the answer
        write_whole(cached, msgspec.json.encode(found))
    return found


def check_age(name: str, info: BinaryInfo, runtime: str) -> None:
    """BundleError when a binary was made by a newer QNN than `runtime` ('2.51.0', '' = unknown): it cannot load."""
    made, have = _release(info.build_id), _release(runtime)
    if made is not None and have is not None and made > have:
        raise BundleError(
            f"{name} was made by QNN {made[0]}.{made[1]} ({info.build_id}), the installed runtime is QNN {runtime}: "
            "update onnxruntime-qnn"
        )


def runtime_version() -> str:
    """The QNN version of the installed libraries, '' when it is not told. Nothing of the package is imported."""
    with suppress(BundleError, OSError):
        text = (library_folder() / "build_and_package_info.py").read_text(encoding="utf-8")
        if match := re.search(r"qnn_version\s*=\s*['\"]([0-9.]+)", text):
            return match[1]
    return ""


def _release(version: str) -> tuple[int, int] | None:
    match = re.match(r"v?(\d+)\.(\d+)", version)
    return (int(match[1]), int(match[2])) if match else None


def run_apart(command: Sequence[str], path: Path, timeout_s: float) -> "subprocess.CompletedProcess[bytes] | None":
    """What became of a command that is given a path, which may kill it; None when it took too long."""
    try:
        return subprocess.run(
            [*command, str(path)], env=child_environment(), capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return None


def _run(path: Path, command: Sequence[str], timeout_s: float) -> BinaryInfo:
    result = run_apart(command, path, timeout_s)
    if result is None:
        raise BundleError(f"{path.name} could not be described within {timeout_s:g} s")
    if result.returncode == REFUSED:
        reason = result.stderr.decode("utf-8", "replace").strip().splitlines()
        raise BundleError(f"{path.name} cannot be read: {reason[-1] if reason else 'no reason given'}")
    if result.returncode != 0:
        raise BundleError(f"{path.name} is damaged: the library that reads it {exit_text(result.returncode)}")
    try:
        return msgspec.json.decode(result.stdout.splitlines()[-1], type=BinaryInfo)
    except (IndexError, msgspec.MsgspecError) as error:
        raise BundleError(f"the description of {path.name} cannot be read: {error}") from error
