"""How much memory there is."""

import ctypes
import os
import struct
import sys
from pathlib import Path

STATUS_BYTES, TOTAL_OFFSET = 64, 8  # of MEMORYSTATUSEX: its own size, percent in use, then bytes of the machine
CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


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
