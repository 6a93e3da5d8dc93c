"""Facts about the machine: chip, driver, device nodes, versions. Windows and Linux differ here and nowhere else."""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from engine.graphs.onnx_qnn import HtpTarget, is_device
from engine.qnn.environment import VARIABLES as QNN_VARIABLES

PACKAGES = ("hexserve", "onnxruntime", "onnxruntime-qnn", "numpy", "tokenizers", "onnx")
VARIABLES = ("ADSP_LIBRARY_PATH", *QNN_VARIABLES, "QNN_SDK_ROOT", "LD_LIBRARY_PATH")
# The part of the chip's name that tells its generation; the first match counts. Chips: soc_model, Hexagon version.
CHIPS = (
    (("x2e", "x2 elite", "x2p", "x2 plus", "sc8480"), HtpTarget(88, 81)),
    (("x1e", "x elite", "x1p", "x plus", "x126", "sc8380", "sc8340"), HtpTarget(60, 73)),
    (("sm8850",), HtpTarget(87, 81)),
    (("sm8750",), HtpTarget(69, 79)),
    (("sm8650",), HtpTarget(57, 75)),
    (("sm8550", "qcs8550"), HtpTarget(43, 73)),
)
X_ELITE = HtpTarget(60, 73)
# Windows' device class "ComputeAccelerator", which NPU drivers belong to.
ACCELERATORS = r"SYSTEM\CurrentControlSet\Control\Class\{f01a9d53-3ff6-48d2-9f97-c8a7004be10c}"
PROCESSOR = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
DEVICE_NODES = ("/dev/fastrpc*", "/dev/adsprpc*")


def versions() -> dict[str, str]:
    """Versions of what matters; '' for what is not installed."""
    return {name: _version(name) for name in PACKAGES} | {
        "python": platform.python_version(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
    }


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def environment() -> dict[str, str]:
    """The variables that change how the libraries behave."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


def chip_name() -> str:
    """What the system calls its processor, '' when it does not tell."""
    if sys.platform == "win32":
        return _registry_text(PROCESSOR, "ProcessorNameString")
    for path in ("/sys/devices/soc0/machine", "/proc/device-tree/model"):
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace").strip("\0\n ")
        except OSError:
            continue
    return platform.processor()


def chip_of(name: str) -> HtpTarget | None:
    """The chip behind a processor's name, None when it is none that is known."""
    lowered = name.lower()
    return next((chip for marks, chip in CHIPS if any(mark in lowered for mark in marks)), None)


def driver(system: str = sys.platform, machine: str | None = None) -> tuple[bool | None, str]:
    """Whether an NPU driver is there, and what is known of it. None: there is nothing to look for on this machine."""
    if not is_device(machine):
        return None, "no NPU in this machine: graphs run in the HTP emulator"
    if system == "win32":
        return judge_accelerators(_accelerators())
    nodes = sorted(str(path) for pattern in DEVICE_NODES for path in Path("/").glob(pattern.lstrip("/")))
    return judge_nodes(nodes, lambda node: os.access(node, os.R_OK | os.W_OK))


def judge_nodes(nodes: Iterable[str], may_open: Callable[[str], bool]) -> tuple[bool, str]:
    """Linux: the compute DSP's fastrpc node must exist and be ours to open."""
    listed = list(nodes)
    compute = [node for node in listed if "cdsp" in node or "adsprpc" in node]
    if not compute:
        return False, f"no fastrpc node of the compute DSP (found: {', '.join(listed) or 'none'}); see docs/npu.md"
    closed = [node for node in compute if not may_open(node)]
    if len(closed) == len(compute):
        return False, f"{closed[0]} cannot be opened by this user; see docs/npu.md"
    return True, ", ".join(compute)


def judge_accelerators(found: Iterable[tuple[str, str]]) -> tuple[bool, str]:
    """Windows: (description, driver version) of the compute accelerators."""
    listed = list(found)
    npus = [f"{name} {version}" for name, version in listed if "hexagon" in name.lower() or "npu" in name.lower()]
    if npus:
        return True, ", ".join(npus)
    return False, "Windows lists no Hexagon NPU under Compute Accelerators: install the NPU driver (Windows Update)"


def _accelerators() -> list[tuple[str, str]]:
    winreg: Any = __import__("winreg")
    found = []
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, ACCELERATORS) as key:
            names = [winreg.EnumKey(key, index) for index in range(winreg.QueryInfoKey(key)[0])]
    except OSError:
        return []
    for name in names:
        path = f"{ACCELERATORS}\\{name}"
        description = _registry_text(path, "DriverDesc")
        if description:
            found.append((description, _registry_text(path, "DriverVersion")))
    return found


def _registry_text(path: str, name: str) -> str:
    winreg: Any = __import__("winreg")
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, path) as key:
            return str(winreg.QueryValueEx(key, name)[0]).strip()
    except OSError:
        return ""
