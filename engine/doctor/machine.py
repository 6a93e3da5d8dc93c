"""Facts about the machine: chip, driver, device nodes, versions. Windows and Linux differ here and nowhere else."""

import importlib.metadata
import os
import platform
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from engine.errors import BundleError
from engine.isolation.machine import processor_name, registry_text
from engine.runtime.qnn.environment import LIBRARIES, OPTIONS_VARIABLE, configured_folder, library_folder


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
    """system, machine: of this Python, as `sys.platform` and `platform.machine()`; native_machine: of the system.

    kernel: `platform.release()`. nodes: fastrpc's and the DMA heap, Linux only. accelerators: Windows only.
    library_folder: where the QNN libraries lie, '' without any; library_files: their names.
    library_variable: what set the folder, '' for the package's own. adsp_files: libraries for the NPU in the folders of
    ADSP_LIBRARY_PATH.
    """

    system: str
    machine: str
    native_machine: str
    kernel: str = ""
    chip: str = ""
    nodes: tuple[DeviceNode, ...] = ()
    accelerators: tuple[Accelerator, ...] = ()
    library_folder: str = ""
    library_files: tuple[str, ...] = ()
    library_variable: str = ""
    adsp_files: tuple[str, ...] = ()


PACKAGES = ("hexserve", "onnxruntime", "onnxruntime-qnn", "numpy", "tokenizers", "onnx")
VARIABLES = ("ADSP_LIBRARY_PATH", OPTIONS_VARIABLE, "QNN_SDK_ROOT", "LD_LIBRARY_PATH")
# Windows' device class "ComputeAccelerator", which NPU drivers belong to.
ACCELERATORS = r"SYSTEM\CurrentControlSet\Control\Class\{f01a9d53-3ff6-48d2-9f97-c8a7004be10c}"
DEVICE_NODES = ("/dev/fastrpc*", "/dev/adsprpc*", "/dev/dma_heap/system")
SYSTEM_ENVIRONMENT = r"SYSTEM\CurrentControlSet\Control\Session Manager\Environment"


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


def machine_facts() -> MachineFacts:
    machine = platform.machine()
    try:
        folder: Path | None = library_folder()
        is_configured = configured_folder(os.environ) is not None
    except BundleError:  # the check of the libraries says so
        folder, is_configured = None, False
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
        adsp_files=_file_names(part for part in _adsp_folders() if part != folder),
    )


def _adsp_folders() -> Iterator[Path]:
    """The parts of ADSP_LIBRARY_PATH, which has semicolons on every system."""
    yield from (Path(part) for part in os.environ.get("ADSP_LIBRARY_PATH", "").split(";") if part)


def _native_machine(machine: str) -> str:
    """An emulated x64 Python is told AMD64 everywhere but in the system's own environment."""
    if sys.platform != "win32":
        return machine
    return registry_text(SYSTEM_ENVIRONMENT, "PROCESSOR_ARCHITECTURE") or machine


def _file_names(folders: Iterable[Path]) -> tuple[str, ...]:
    """Of what lies in them; of one that cannot be read nothing."""
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
