"""How much memory there is."""

import ctypes
import os
import sys
from pathlib import Path

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


class WindowsMemory(ctypes.Structure):
    """MEMORYSTATUSEX of Windows; `length` is its own size and has to be set before it is asked for."""

    _fields_ = (
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total", ctypes.c_uint64),
        ("others", ctypes.c_uint64 * 6),
    )


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
    status = WindowsMemory(length=ctypes.sizeof(WindowsMemory))
    kernel = ctypes.windll.kernel32  # type: ignore[attr-defined,unused-ignore]
    return int(status.total) if kernel.GlobalMemoryStatusEx(ctypes.byref(status)) else 0
