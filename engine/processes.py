"""How every process of ours is started: its command line, its environment, its process group; how it ended. Nothing in
the user's working folder counts: an `engine.py`, `numpy.py` or `sitecustomize.py` there is never imported."""

import ctypes
import importlib.metadata
import os
import signal
import site
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

PACKAGE_ROOT = Path(__file__).resolve().parents[1]
NOTHING: Mapping[str, str] = MappingProxyType({})
TUNABLES = "GLIBC_TUNABLES"


def module_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs a module in our Python; -P keeps the working folder out of the child's import path."""
    return [sys.executable, "-P", "-m", module, *arguments]


def install_command(extra: str, *options: str) -> str:
    """What a user types to add an extra of ours to this environment, whichever pip comes first on PATH."""
    python = f'"{sys.executable}"' if " " in sys.executable else sys.executable
    called = "& " * (" " in sys.executable and sys.platform == "win32")  # PowerShell takes what is quoted for a text
    return " ".join([f"{called}{python} -m pip install", *options, f'"hexserve[{extra}]"'])


def installed_version(distribution: str, otherwise: str = "") -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return otherwise


def child_environment(more: Mapping[str, str] = NOTHING) -> dict[str, str]:
    """Our environment and `more`, in which a child and its own children import the `engine` that we import."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sites = [Path(folder).resolve() for folder in (*site.getsitepackages(), site.getusersitepackages())]
    return {
        **os.environ,
        **more,
        "PYTHONPATH": os.pathsep.join(import_path(PACKAGE_ROOT, inherited, sites)),
        "PYTHONSAFEPATH": "1",
        "PYTHONIOENCODING": "utf-8",
        "ORT_DISABLE_TELEMETRY": "1",  # also for libraries that load onnxruntime without us
    }


def process_is_alive(process_id: int) -> bool:
    """True when a process with this id runs, whoever owns it."""
    if not 0 < process_id < 1 << 31:
        return False
    if sys.platform == "win32":
        return _alive_on_windows(process_id)
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _alive_on_windows(process_id: int) -> bool:
    """`os.kill` would end the process there, so ask for a handle and its exit code (STILL_ACTIVE is 259)."""
    kernel = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
    handle = kernel.OpenProcess(0x1000, False, process_id)  # PROCESS_QUERY_LIMITED_INFORMATION
    if not handle:
        return bool(kernel.GetLastError() == 5)  # access denied: it exists
    code = ctypes.c_ulong()
    kernel.GetExitCodeProcess(handle, ctypes.byref(code))
    kernel.CloseHandle(handle)
    return code.value == 259


def exit_text(code: int | None) -> str:
    """How a process ended. POSIX tells a signal as a negative code, Windows an exception as one such as 0xC0000005."""
    if code is None:
        return "ended with an unknown status"
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
        return f"was killed by {name}"
    return f"exited with status {code}" if code < 0x8000_0000 else f"crashed with status 0x{code:08X}"


def graph_memory(ours: Mapping[str, str], platform: str = sys.platform) -> dict[str, str]:
    """Variables of a process that runs graphs: glibc asks for huge pages for what is allocated in large pieces. A step
    reads all the weights, and with pages of 4 KiB a tenth of its time goes into finding where they lie. Nothing where
    the user has tuned glibc. https://sourceware.org/glibc/manual/latest/html_node/Memory-Allocation-Tunables.html"""
    return {} if platform != "linux" or TUNABLES in ours else {TUNABLES: "glibc.malloc.hugetlb=1"}


def import_path(root: Path, inherited: Iterable[str], site_folders: Iterable[Path]) -> list[str]:
    """PYTHONPATH of a child: the folder of our packages, then what the user set. A site folder is found anyway, and its
    packages would replace modules of the standard library. An empty entry means the working folder: it is left out."""
    user = [str(Path(entry).absolute()) for entry in inherited if entry]
    return user if root in site_folders else [str(root), *user]


def own_group(platform: str = sys.platform) -> dict[str, Any]:
    """Arguments for starting a process that terminal signals do not reach: we end it, in order. A process that we only
    wait for stays in our group, so that Ctrl-C ends it with us."""
    if platform == "win32":
        return {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0x200)}
    return {"start_new_session": True}
