"""Whether a process id is alive, on POSIX and on Windows: locks and unfinished folders carry their owner's id."""

import ctypes
import os
import sys


def process_is_alive(process_id: int) -> bool:
    """True when a process with this id runs, whoever owns it."""
    if process_id <= 0:
        return False
    if sys.platform == "win32":
        return _alive_on_windows(process_id)
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
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
