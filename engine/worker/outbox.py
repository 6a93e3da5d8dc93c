"""What a pass came to, held back until the next one has begun: then encoding and sending it delays no pass."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from engine.messages import Report
from engine.worker.report_pipe import ReportPipe

Reports = Callable[[], list[Report]]


class Outbox:
    """Sends in a thread of its own, in order. Who has nothing to run next flushes, so that nothing waits for long."""

    def __init__(self, pipe: ReportPipe) -> None:
        self._pipe = pipe
        self._held: list[Reports] = []
        self._sending: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="reports")

    def hold(self, reports: Reports) -> None:
        """Keep reports until they are released; they are made when they are sent."""
        self._held.append(reports)

    def release(self) -> None:
        """A pass begins: send what is held meanwhile."""
        if self._held:
            held, self._held = self._held, []
            self._sending = self._thread.submit(self._send, held)

    def flush(self) -> None:
        """Send what is held and return when nothing is left to send."""
        self.release()
        if self._sending is not None:
            self._sending.result()

    def close(self) -> None:
        """Flush, and let the thread end."""
        self.flush()
        self._thread.shutdown()

    def _send(self, held: list[Reports]) -> None:
        for reports in held:
            for report in reports():
                self._pipe.send(report)
