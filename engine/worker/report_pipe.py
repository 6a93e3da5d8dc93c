"""The worker's end of the pipe to its parent."""

import os
import threading
from typing import BinaryIO

from engine.messages import Report, frame


class ReportPipe:
    """Reports leave whole, whichever thread sends them."""

    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def send(self, report: Report) -> None:
        """Write one report. When the parent is gone, so is every stream: the process ends."""
        data = frame(report)
        try:
            with self._lock:
                self._pipe.write(data)
                self._pipe.flush()
        except OSError:  # BrokenPipeError, or plain EINVAL on Windows
            os._exit(0)
