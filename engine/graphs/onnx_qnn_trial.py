"""`python -m engine.graphs.onnx_qnn_trial FOLDER`: load an NPU bundle and end.

A damaged binary, or one the driver dislikes, kills the process that loads it. So the first load happens in a process
of its own, and its success is remembered for these files, these versions and this device.
"""

import hashlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from engine.bundle.check import check_contract, check_listed
from engine.bundle.hashes import check_once
from engine.bundle.manifest import Manifest, load_manifest
from engine.errors import BundleError
from engine.graphs.onnx_library import ort
from engine.graphs.onnx_qnn import check_machine, device_name, qnn_provider
from engine.graphs.onnx_sessions import load_sessions
from engine.graphs.qnn_checks import check_binaries
from engine.processes import child_environment, module_command
from engine.qnn.binary import BinaryInfo
from engine.qnn.bound import as_bound
from engine.qnn.environment import VARIABLES
from engine.qnn.failures import explain
from engine.qnn.library import package_version
from engine.qnn.reader import check_age, describe_binary, runtime_version

REFUSED = 3
TRIAL_FOLDER = "loads"
TIMEOUT_S = 600.0


def main(argv: Sequence[str]) -> int:
    """0 when every graph loads; 3 after one sentence on stderr when one is refused."""
    folder = Path(argv[0])
    try:
        manifest = load_manifest(folder)
        load_sessions(folder, manifest, qnn_provider(manifest)).clear()
    except BundleError as error:
        print(error, file=sys.stderr)
        return REFUSED
    return 0


def check_bundle(folder: Path, manifest: Manifest, cache: Path | None, command: Sequence[str] = ()) -> None:
    """Everything that is checked before an NPU bundle is loaded for good. BundleError says what is wrong.

    cache: where binaries' descriptions and successful loads are remembered, None = nowhere.
    command: what tries to load the folder given as its last argument, () = this module.
    """
    check_machine(manifest)
    check_listed(manifest)
    check_contract(manifest)
    marker = cache / TRIAL_FOLDER / f"{trial_key(folder, manifest)}.json" if cache else None
    if marker is not None and marker.is_file():
        return
    check_once(folder, manifest, cache)
    check_binaries(manifest, as_bound(folder, manifest, read_binaries(folder, manifest, cache)))
    try_load(folder, command or module_command("engine.graphs.onnx_qnn_trial"))
    if marker is not None:
        _remember(marker, manifest.name)


def read_binaries(folder: Path, manifest: Manifest, cache: Path | None) -> dict[str, BinaryInfo]:
    """What each binary of a bundle holds; BundleError when one is damaged or newer than the runtime."""
    assert manifest.npu is not None
    infos: dict[str, BinaryInfo] = {}
    with tempfile.TemporaryDirectory(prefix="hexserve-") as nowhere:
        for file in manifest.npu.binaries:
            infos[file] = describe_binary(folder / file, cache or Path(nowhere))
            check_age(file, infos[file], runtime_version())
    return infos


def trial_key(folder: Path, manifest: Manifest) -> str:
    """Names a load: the files as they lie there, what would load them, and the options."""
    assert manifest.npu is not None
    names = sorted({*manifest.npu.binaries, *(graph.file for graph in manifest.graphs)})
    stamps = [(name, (folder / name).stat().st_size, (folder / name).stat().st_mtime_ns) for name in names]
    hashes = [manifest.files[name].sha256 for name in names]
    settings = [os.environ.get(name, "") for name in VARIABLES]
    runtime = (ort.__version__, package_version(), device_name(), settings)
    facts = (str(folder.resolve()), stamps, hashes, runtime)
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:24]


def try_load(folder: Path, command: Sequence[str], timeout_s: float = TIMEOUT_S) -> None:
    """Load in another process; BundleError with its reason, or with how it died."""
    try:
        result = subprocess.run(
            [*command, str(folder)], env=child_environment(), capture_output=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise BundleError(f"the binaries of {folder.name} did not load within {timeout_s:g} s") from None
    if result.returncode == 0:
        return
    errors = result.stderr.decode("utf-8", "replace")
    meaning = explain(errors)
    advice = f"; {meaning}" if meaning else "; `hexserve doctor` tells more"
    if result.returncode == REFUSED:
        raise BundleError(f"{errors.strip().splitlines()[-1]}{advice if meaning else ''}")
    raise BundleError(
        f"the QNN runtime {_ending(result.returncode)} while it loaded the binaries of {folder.name}: "
        f"they are damaged, or not made for this {device_name()}{advice}"
    )


def _ending(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name if -code in set(signal.Signals) else f'signal {-code}'}"
    return f"ended with code {code:#x}" if code > 255 else f"ended with code {code}"


def _remember(marker: Path, name: str) -> None:
    """A cache that cannot be written costs time, not the answer."""
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.write_bytes(msgspec.json.encode({"bundle": name}))
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
