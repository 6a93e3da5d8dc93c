"""This machine: its processor, how busy its cores are, how much memory there is and what a process gives back of it."""

import contextlib
import ctypes
import os
import platform
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROCESSOR_KEY = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
BOARDS = ("/sys/devices/soc0/machine", "/proc/device-tree/model", "/proc/device-tree/compatible")
CPU_INFO = Path("/proc/cpuinfo")
CPU_TIMES = Path("/proc/stat")
IDLE_FIELDS = (3, 4)  # of the line "cpu": idle, and waiting for a disk
COUNTED_FIELDS = 8  # those behind them, of guests, are counted in the first two
WINDOWS_TICKS_PER_S = 10_000_000
STATUS_BYTES, TOTAL_OFFSET = 64, 8  # of MEMORYSTATUSEX: its own size, percent in use, then bytes of the machine
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
CGROUP_CPUS = Path("/sys/fs/cgroup/cpu.max")
MAPS = Path("/proc/self/smaps")
DONT_NEED = 4  # of madvise
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ \d+ *(.*)")


def processor_name() -> str:
    """What the system calls its processor, '' when it does not tell."""
    if sys.platform == "win32":
        return registry_text(PROCESSOR_KEY, "ProcessorNameString")
    boards = [_text_of(Path(path)).strip("\0\n ").replace("\0", " ") for path in BOARDS]
    lines = (line.partition(":") for line in _text_of(CPU_INFO).splitlines())
    name = next((value.strip() for key, _, value in lines if key.strip() == "model name"), "")
    return ", ".join(filter(None, boards)) or name or platform.processor()


def _text_of(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def has_amx() -> bool:
    """Whether integers of 8 bits are multiplied by Intel's AMX, which onnxruntime uses on Linux alone."""
    return any(line.startswith("flags") and "amx_int8" in line.split() for line in _text_of(CPU_INFO).splitlines())


def usable_cores() -> int:
    """Cores that this process may use: those it is bound to, no more than the time that a container gets."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota, _, period = _text_of(CGROUP_CPUS).partition(" ")
    return min(bound, max(1, int(quota) // int(period))) if quota.isdecimal() else bound


def busy_seconds() -> float | None:
    """Seconds that all cores together have worked since the system started, for whomever; None where it is not told."""
    if sys.platform == "win32":
        return windows_busy_seconds()
    try:
        name, *fields = CPU_TIMES.read_text(encoding="utf-8").partition("\n")[0].split()
        ticks = [int(field) for field in fields[:COUNTED_FIELDS]]
        idle = sum(ticks[index] for index in IDLE_FIELDS)
        return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK") if name == "cpu" else None
    except (OSError, ValueError, IndexError):
        return None


def windows_busy_seconds() -> float | None:
    """The same as Windows says it, which counts idle time as the kernel's."""
    idle, kernel, user = (ctypes.c_uint64() for _ in range(3))
    system = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
    if not system.GetSystemTimes(ctypes.byref(idle), ctypes.byref(kernel), ctypes.byref(user)):
        return None
    return (kernel.value - idle.value + user.value) / WINDOWS_TICKS_PER_S


def registry_text(path: str, name: str) -> str:
    """A value of Windows' registry below HKEY_LOCAL_MACHINE, '' where there is none."""
    winreg: Any = __import__("winreg")
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, path) as key:
            return str(winreg.QueryValueEx(key, name)[0]).strip()
    except OSError:
        return ""


def usable_memory() -> int:
    """Bytes of main memory that this process may use, 0 where the system does not say."""
    if sys.platform == "win32":
        return windows_memory()
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0
    try:
        return min(physical, int(CGROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # no limit, or it reads "max"
        return physical


def windows_memory() -> int:
    """Bytes of the machine's main memory as Windows says it, which has no sysconf; 0 when it does not."""
    status = ctypes.create_string_buffer(STATUS_BYTES)
    struct.pack_into("<I", status, 0, STATUS_BYTES)
    kernel = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
    answers = kernel.GlobalMemoryStatusEx(ctypes.byref(status))
    return int(struct.unpack_from("<Q", status, TOTAL_OFFSET)[0]) if answers else 0


def give_back_freed() -> None:
    """Return what was freed, which glibc keeps. It may break huge pages up, so not where graphs run."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


def give_back_read(folder: Path) -> None:
    """Return pages of the folder's mapped files that were read and not written. onnxruntime copies most weights when it
    opens a graph. What it reads again comes from the file's cache."""
    if sys.platform == "linux":
        advise = ctypes.CDLL(None).madvise
        for start, size in _unwritten(f"{folder.resolve()}/"):
            advise(ctypes.c_void_p(start), ctypes.c_size_t(size), DONT_NEED)


def _unwritten(prefix: str) -> Iterator[tuple[int, int]]:
    """Address and size of each mapping of such files with no page of its own."""
    start = size = 0
    for line in MAPS.read_text(encoding="utf-8", errors="replace").splitlines():
        if found := _MAPPING.fullmatch(line):
            start = int(found[1], 16)
            size = int(found[2], 16) - start if found[3].startswith(prefix) else 0
        elif size and line.startswith("Anonymous:") and int(line.split()[1]) == 0:
            yield start, size
