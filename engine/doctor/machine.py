"""Facts about the machine (chip, driver, device nodes, versions), and one line for each problem, with what helps.
Windows and Linux differ in how the facts are read and nowhere else."""

import os
import platform
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import BundleError
from engine.isolation.machine import processor_name, registry_text
from engine.processes import installed_version
from engine.runtime.qnn.environment import LIBRARIES, OPTIONS_VARIABLE, configured_folder, library_folder
from engine.runtime.qnn.provider import HtpTarget, is_device


class DeviceNode(msgspec.Struct, frozen=True):
    """A device file of Linux. mode: as `ls` writes it; may_open: read and write, by this user."""

    path: str
    mode: str = ""
    owner: str = ""
    group: str = ""
    may_open: bool = True


class Accelerator(msgspec.Struct, frozen=True):
    """A compute accelerator of Windows' device manager."""

    description: str
    version: str


class MachineFacts(msgspec.Struct, frozen=True):
    """Of this machine, and of this Python on it."""

    system: str  # `sys.platform`
    machine: str  # `platform.machine()` of this Python
    native_machine: str  # of the system
    kernel: str = ""  # `platform.release()`
    chip: str = ""
    nodes: tuple[DeviceNode, ...] = ()  # fastrpc's and the DMA heap, Linux only
    accelerators: tuple[Accelerator, ...] = ()  # Windows only
    library_folder: str = ""  # where the QNN libraries lie, '' without any
    library_files: tuple[str, ...] = ()  # their names
    library_variable: str = ""  # what set the folder, '' for the package's own
    adsp_files: tuple[str, ...] = ()  # libraries for the NPU in the folders of ADSP_LIBRARY_PATH


PACKAGES = ("hexserve", "onnxruntime", "onnxruntime-qnn", "numpy", "tokenizers", "onnx")
VARIABLES = ("ADSP_LIBRARY_PATH", OPTIONS_VARIABLE, "QNN_SDK_ROOT", "LD_LIBRARY_PATH")
# Windows' device class "ComputeAccelerator", which NPU drivers belong to.
ACCELERATORS = r"SYSTEM\CurrentControlSet\Control\Class\{f01a9d53-3ff6-48d2-9f97-c8a7004be10c}"
DEVICE_NODES = ("/dev/fastrpc*", "/dev/adsprpc*", "/dev/dma_heap/system")
SYSTEM_ENVIRONMENT = r"SYSTEM\CurrentControlSet\Control\Session Manager\Environment"


def versions() -> dict[str, str]:
    return {name: installed_version(name) for name in PACKAGES} | {
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
    }


def environment() -> dict[str, str]:
    """The variables that change how the libraries behave."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def machine_facts() -> MachineFacts:
    machine = platform.machine()
    try:
        folder: Path | None = library_folder()
        is_configured = configured_folder(os.environ) is not None
    except BundleError:  # the check of the libraries says so
        folder, is_configured = None, False
    adsp = os.environ.get("ADSP_LIBRARY_PATH", "")  # with semicolons on every system
    return MachineFacts(
        system=sys.platform,
        machine=machine,
        native_machine=_native_machine(machine),
        kernel=platform.release(),
        chip=processor_name(),
        nodes=tuple(_nodes()) if sys.platform == "linux" else (),
        accelerators=tuple(_accelerators()) if sys.platform == "win32" else (),
        library_folder=str(folder or ""),
        library_files=_file_names([folder] if folder else []),
        library_variable=f"{LIBRARIES} of {OPTIONS_VARIABLE}" if is_configured else "",
        adsp_files=_file_names(part for part in map(Path, filter(None, adsp.split(";"))) if part != folder),
    )


def _native_machine(machine: str) -> str:
    """An emulated x64 Python is told AMD64 everywhere but in the system's own environment."""
    if sys.platform != "win32":
        return machine
    return registry_text(SYSTEM_ENVIRONMENT, "PROCESSOR_ARCHITECTURE") or machine


def _file_names(folders: Iterable[Path]) -> tuple[str, ...]:
    return tuple(sorted({name for folder in folders for _, _, names in os.walk(folder) for name in names}))


def _nodes() -> Iterator[DeviceNode]:
    for path in sorted(found for pattern in DEVICE_NODES for found in Path("/").glob(pattern.lstrip("/"))):
        try:
            known = path.stat()
        except OSError:
            continue
        may_open = os.access(path, os.R_OK | os.W_OK)
        yield DeviceNode(str(path), stat.filemode(known.st_mode), *_names_of(path), may_open)


def _names_of(path: Path) -> tuple[str, str]:
    """User and group; a container may not know theirs by name."""
    try:
        return path.owner(), path.group()
    except (KeyError, OSError):
        known = path.stat()
        return str(known.st_uid), str(known.st_gid)


def _accelerators() -> Iterator[Accelerator]:
    winreg: Any = __import__("winreg")
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, ACCELERATORS) as key:
            names = [winreg.EnumKey(key, index) for index in range(winreg.QueryInfoKey(key)[0])]
    except OSError:
        return
    for name in names:
        path = f"{ACCELERATORS}\\{name}"
        description = registry_text(path, "DriverDesc")
        if description:
            yield Accelerator(description, registry_text(path, "DriverVersion"))


class CheckStatus(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report."""

    name: str
    status: CheckStatus
    text: str
    advice: str = ""  # what to do about a failure, '' when nothing is known
    said: str = ""  # the last of what the libraries wrote before they failed; for the file only


X_ELITE = HtpTarget(60, 73)
X2_ELITE = HtpTarget(88, 81)
# The part of the chip's name that tells its generation; the first match counts. Chips: soc_model, Hexagon version.
# X1P42100 and X126100 are smaller dies of the same generation, with the same Hexagon; the names of Linux' device trees
# are hamoa and purwa for the first generation, glymur and mahua for the second.
CHIPS = (
    (("x2e", "x2 elite", "x2p", "x2 plus", "sc8480", "glymur", "mahua"), X2_ELITE),
    (("x1e", "x elite", "x1p", "x plus", "x126", "sc8380", "sc8340", "hamoa", "purwa"), X_ELITE),
    (("sm8850",), HtpTarget(87, 81)),
    (("sm8750",), HtpTarget(69, 79)),
    (("sm8650",), HtpTarget(57, 75)),
    (("sm8550", "qcs8550"), HtpTarget(43, 73)),
)
# Laptops of before; their Hexagon is older than v73, for which nothing here is made.
TOO_OLD = re.compile(r"snapdragon.*\b(?:7c|8c|8cx)\b|microsoft\W+(?:r\W+)?sq\d|\bsc(?:7180|7280|8180|8280)")
MAKERS = ("snapdragon", "qualcomm", "oryon", "qcom")


def chip_of(name: str) -> HtpTarget | None:
    """The chip behind a processor's name, None when it is none that is known."""
    lowered = name.lower()
    return next((chip for marks, chip in CHIPS if any(mark in lowered for mark in marks)), None)


def is_too_old(name: str) -> bool:
    """Whether this is a Snapdragon of a generation that nothing here is made for."""
    return chip_of(name) is None and TOO_OLD.search(name.lower()) is not None


def is_snapdragon(name: str) -> bool:
    return chip_of(name) is not None or is_too_old(name) or any(mark in name.lower() for mark in MAKERS)


DRIVER = "NPU driver"
# What Microsoft's list of execution providers asks for on X Elite and X Plus; drivers of later chips are newer anyway.
LEAST_DRIVER = (30, 0, 140, 0)
UPDATE = (
    "install the newest Qualcomm Hexagon NPU driver: Windows Update, 'Advanced options', 'Optional updates', or the "
    "laptop maker's page"
)
ARM64_PYTHON = (
    "install Python 3.12 or 3.13 from python.org with the 'Windows installer (ARM64)' and make the environment anew "
    "with it: platform.machine() must say ARM64"
)
WINDOWS_ITSELF = (
    "install and run hexserve in Windows itself; programs in WSL reach it at the address of the Windows host when it "
    "is started with --host 0.0.0.0 and an API key"
)


def machine_checks(facts: MachineFacts) -> Iterator[Check]:
    """The checks that need no library to be loaded: Python, chip, driver, libraries for the NPU."""
    if is_emulated(facts):
        text = (
            f"this Python is made for {facts.machine} and emulated on {facts.native_machine}: it cannot reach the NPU"
        )
        yield Check("Python", CheckStatus.FAIL, text, ARM64_PYTHON)
    yield chip_check(facts.chip)
    yield driver_check(facts)
    if is_device(facts.machine):
        yield from skel_checks(facts)


def is_emulated(facts: MachineFacts) -> bool:
    """Whether an ARM64 Windows runs this Python as if on another processor."""
    return facts.system == "win32" and is_device(facts.native_machine) and not is_device(facts.machine)


def chip_check(name: str) -> Check:
    chip = chip_of(name)
    if chip is not None:
        return Check("chip", CheckStatus.PASS, f"{name}: soc_model {chip.soc_model}, Hexagon v{chip.htp_arch}")
    if is_too_old(name):
        text = f"{name}: its Hexagon is older than v73, the oldest that binaries are made for here"
        return Check("chip", CheckStatus.FAIL, text, "serve bundles for the CPU on this machine (--target cpu)")
    if is_snapdragon(name):
        advice = "it is taken for an X Elite; please send this name with a bug report"
        return Check("chip", CheckStatus.SKIP, f"{name}: a Snapdragon that is not known here", advice)
    return Check("chip", CheckStatus.SKIP, f"{name or 'unknown'}: not a Snapdragon that is known here")


def driver_check(facts: MachineFacts) -> Check:
    """Whether an NPU driver is there and new enough; skipped where there is nothing to look for."""
    if not (is_device(facts.machine) or is_emulated(facts)):
        return Check(DRIVER, CheckStatus.SKIP, "no NPU in this machine: graphs run in the HTP emulator")
    if facts.system == "linux" and "microsoft" in facts.kernel.lower():
        text = "this is Linux inside Windows (WSL), which has no device node of the NPU and cannot be given one"
        return Check(DRIVER, CheckStatus.FAIL, text, WINDOWS_ITSELF)
    return accelerator_check(facts) if facts.system == "win32" else node_check(facts.nodes)


def accelerator_check(facts: MachineFacts) -> Check:
    """Windows: the device manager must list the NPU, with a driver that is not too old for the runtime."""
    npus = [each for each in facts.accelerators if re.search("hexagon|npu", each.description, re.IGNORECASE)]
    if not npus:
        text = "Windows lists no Hexagon NPU under Compute Accelerators: its driver is not installed"
        return Check(DRIVER, CheckStatus.FAIL, text, f"{UPDATE}; then restart")
    listed = ", ".join(f"{each.description} {each.version}" for each in npus)
    if chip_of(facts.chip) == X_ELITE and all(_is_old(each) for each in npus):
        least = ".".join(map(str, LEAST_DRIVER))
        return Check(DRIVER, CheckStatus.FAIL, f"{listed} is older than {least}", f"{UPDATE}; then restart")
    return Check(DRIVER, CheckStatus.PASS, listed)


def _is_old(accelerator: Accelerator) -> bool:
    parts = accelerator.version.split(".")
    return len(parts) == 4 and all(map(str.isdecimal, parts)) and tuple(map(int, parts)) < LEAST_DRIVER


def node_check(nodes: tuple[DeviceNode, ...]) -> Check:
    """Linux: the compute DSP's fastrpc node must exist and be ours to open, and so must the heap of its buffers."""
    fastrpc = [node for node in nodes if not node.path.startswith("/dev/dma_heap")]
    compute = [node for node in fastrpc if "cdsp" in node.path or "adsprpc" in node.path]
    if not compute:
        text = f"no fastrpc node of the compute DSP (found: {', '.join(node.path for node in fastrpc) or 'none'})"
        advice = (
            "take a kernel with the fastrpc driver and the firmware of the compute DSP (linux-firmware, or your "
            "board's), give the nodes to the container if this is one; see docs/how-to/npu.md"
        )
        return Check(DRIVER, CheckStatus.FAIL, text, advice)
    heaps = [node for node in nodes if node.path.startswith("/dev/dma_heap")][:1]
    for group in (compute, heaps):
        if group and not any(node.may_open for node in group):
            return _closed(group[0])
    return Check(DRIVER, CheckStatus.PASS, ", ".join(node.path for node in compute))


def _closed(node: DeviceNode) -> Check:
    shown = f" ({node.mode} {node.owner}:{node.group})" if node.mode else ""
    text = f"{node.path}{shown} cannot be opened by this user"
    if node.group in ("", "root") or (node.mode and "rw" not in node.mode[4:6]):
        advice = (
            "install fastrpc's udev rules (package fastrpc 1.0.6 or newer), which give it to the group fastrpc, and "
            "add yourself: sudo usermod -aG fastrpc $USER"
        )
    else:
        advice = f"sudo usermod -aG {node.group} $USER, then log in again; in a container --group-add {node.group}"
    return Check(DRIVER, CheckStatus.FAIL, text, advice)


def skel_checks(facts: MachineFacts) -> Iterator[Check]:
    """The library that the NPU itself loads, the skel: there, signed where Windows asks for it, and the right one.
    Nothing is said of one that is well, of an unknown chip and without QNN libraries."""
    chip = chip_of(facts.chip)
    if chip is None or not facts.library_folder:
        return
    skel, catalogue = f"libQnnHtpV{chip.htp_arch}Skel.so", f"libqnnhtpv{chip.htp_arch}.cat"
    there = {name.lower() for name in facts.library_files}
    set_by = facts.library_variable
    mend = f"take out {set_by}" if set_by else "pip install --force-reinstall onnxruntime-qnn"
    if skel.lower() not in there:
        if facts.library_variable:  # the driver's own, or the SDK's in another folder
            return
        text = f"{facts.library_folder} has no {skel}, which a Hexagon v{chip.htp_arch} loads"
        yield Check("skel", CheckStatus.FAIL, text, mend)
    elif facts.system == "win32" and catalogue not in there:
        text = f"{skel} in {facts.library_folder} is unsigned ({catalogue} is missing): Windows loads it into no NPU"
        yield Check("skel", CheckStatus.FAIL, text, f"{mend}, so that the signed one of the package is taken")
    elif skel.lower() in {name.lower() for name in facts.adsp_files}:
        text = f"ADSP_LIBRARY_PATH leads to another {skel} than the one of {facts.library_folder}"
        yield Check("skel", CheckStatus.FAIL, text, "unset ADSP_LIBRARY_PATH: the libraries find their own")
