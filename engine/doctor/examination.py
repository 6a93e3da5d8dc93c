"""The checks of `hexserve doctor`, in order; each says what it found and, when it failed, what to do."""

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import load_manifest
from engine.doctor.machine import (
    X_ELITE,
    Check,
    CheckStatus,
    chip_of,
    environment,
    machine_checks,
    machine_facts,
    versions,
)
from engine.errors import BundleError
from engine.processes import child_environment, module_command
from engine.runtime.qnn.environment import MISSING, explain, library_folder, package_version
from engine.runtime.qnn.probe import STEPS, ProbeStep
from engine.runtime.qnn.provider import HtpTarget, device_name
from engine.runtime.qnn.reader import runtime_version
from engine.runtime.qnn.trial import check_bundle, read_binaries

ROWS, WIDTH = 8, 32


def small_graph() -> bytes:
    """An ONNX file: x [1, 8, 32] float16 -> y of the same shape, softmax(x W) with `weights`."""
    return Path(__file__).with_name("small.onnx").read_bytes()


def weights() -> NDArray[np.float16]:
    """W [32, 32]."""
    return np.sin(np.arange(WIDTH * WIDTH, dtype=np.float32)).reshape(WIDTH, WIDTH).astype(np.float16)


def example() -> NDArray[np.float16]:
    """An input [1, 8, 32]."""
    return np.cos(np.arange(ROWS * WIDTH, dtype=np.float32)).reshape(1, ROWS, WIDTH).astype(np.float16)


def expected() -> NDArray[np.float32]:
    """What y must be for `example`, by its definition."""
    scores = example().astype(np.float32) @ weights().astype(np.float32)
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    result: NDArray[np.float32] = powers / powers.sum(axis=-1, keepdims=True)
    return result


CLOSE = 0.01  # half precision on another unit; the largest probability is 1
PROBE_TIMEOUT_S = 300.0
UNKNOWN = "not a failure that is known here: please send the file of --report with a bug report"
_ERROR_TEXT = 400
_SAID = 4000


def examine(bundle: Path | None, probe: Sequence[str] = ()) -> Iterator[Check]:
    """All checks. probe: what tries the providers, () = `python -m engine.runtime.qnn.probe`."""
    found = versions()
    yield Check("versions", CheckStatus.PASS, ", ".join(f"{name} {value}" for name, value in found.items() if value))
    if variables := ", ".join(f"{key}={value}" for key, value in environment().items()):
        yield Check("environment", CheckStatus.PASS, variables)
    facts = machine_facts()
    checks = tuple(machine_checks(facts))
    yield from checks
    libraries = _libraries()
    yield libraries
    is_npu_well = not any(check.status is CheckStatus.FAIL for check in checks)
    steps = STEPS if is_npu_well and libraries.status is CheckStatus.PASS else STEPS[:1]
    yield from try_providers(probe or module_command("engine.runtime.qnn.probe"), steps, chip_of(facts.chip))
    if not is_npu_well:
        yield Check("NPU", CheckStatus.SKIP, "not tried: it would fail for the reason above")
    if bundle is not None:
        yield from examine_bundle(bundle)


def _libraries() -> Check:
    name = "QNN libraries"
    if not package_version():
        return Check(name, CheckStatus.SKIP, f"{MISSING}; bundles for the CPU work without them")
    try:
        return Check(name, CheckStatus.PASS, f"QNN {runtime_version() or '?'} in {library_folder()}")
    except BundleError as error:
        return Check(name, CheckStatus.FAIL, str(error))


def try_providers(command: Sequence[str], steps: Sequence[str], chip: HtpTarget | None = None) -> Iterator[Check]:
    """Compile a small graph, run it and compare with the definition, in another process; one check for each step. chip:
    None for one that is not known, taken for an X Elite."""
    chip = chip or X_ELITE
    with tempfile.TemporaryDirectory(prefix="hexserve-doctor-") as name:
        folder = Path(name)
        (folder / "small.onnx").write_bytes(small_graph())
        np.save(folder / "x.npy", example())
        done, errors, how = _probe([*command, name, str(chip.soc_model), str(chip.htp_arch)])
        for step in steps:
            result = done.get(step)
            if result is not None and result.ok:
                yield Check(step, CheckStatus.PASS, result.text)
                continue
            text = f"the process {how} during this step" if result is None else result.text[:_ERROR_TEXT]
            advice = explain(errors) or UNKNOWN if result is None else explain(result.text + errors)
            yield Check(step, CheckStatus.FAIL, text, advice, errors[-_SAID:])
            return
        yield from _compare(folder)


def _probe(command: Sequence[str]) -> tuple[dict[str, ProbeStep], str, str]:
    """Finished steps by name, what was written to stderr, and how the process ended."""
    try:
        result = subprocess.run(
            command, env=child_environment(), capture_output=True, timeout=PROBE_TIMEOUT_S, check=False
        )
        output, errors, how = result.stdout, result.stderr, f"ended with code {result.returncode}"
    except subprocess.TimeoutExpired as error:
        output, errors, how = error.stdout or b"", error.stderr or b"", f"was silent for {PROBE_TIMEOUT_S:g} s"
    steps = {}
    for line in output.splitlines():
        try:
            step = msgspec.json.decode(line, type=ProbeStep)
        except msgspec.MsgspecError:
            continue  # the libraries print banners of their own
        steps[step.step] = step
    return steps, errors.decode("utf-8", "replace"), how


def _compare(folder: Path) -> Iterator[Check]:
    """Both providers against the definition; nothing is said of one that did not run."""
    for name, file in (("CPU", "y_cpu.npy"), (device_name(), "y_qnn.npy")):
        if (folder / file).is_file():
            error = float(np.abs(np.load(folder / file).astype(np.float32) - expected()).max())
            status = CheckStatus.PASS if error <= CLOSE else CheckStatus.FAIL
            yield Check(f"result on {name}", status, f"largest difference from the definition {error:.1e}")


def examine_bundle(folder: Path) -> Iterator[Check]:
    """An NPU bundle: the QNN version that made its binaries, whether they match the manifest, whether they load."""
    try:
        manifest = load_manifest(folder)
        if manifest.npu is None:
            yield Check("bundle", CheckStatus.PASS, f"{manifest.name} for {manifest.target}: no NPU binaries in it")
            return
        for file, info in read_binaries(folder, manifest, None).items():
            yield Check(file, CheckStatus.PASS, f"made by QNN {info.build_id}, {len(info.graphs)} graphs")
        check_bundle(folder, manifest, None)
    except BundleError as error:
        yield Check("bundle", CheckStatus.FAIL, str(error), explain(str(error)))
        return
    yield Check("bundle", CheckStatus.PASS, f"{manifest.name} loads on the {device_name()}")
