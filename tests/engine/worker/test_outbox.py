"""Reports leave in order, when the next step has begun or when there is none."""

import threading

from engine.messages import Failed, Report
from engine.worker.process import Outbox, ReportPipe


class Sent(ReportPipe):
    """Notes what is sent; the first report waits until it may go."""

    def __init__(self, is_open: bool = True) -> None:
        self.names: list[str] = []
        self.gate = threading.Event()
        if is_open:
            self.gate.set()

    def send(self, report: Report) -> None:
        self.gate.wait(30)
        assert isinstance(report, Failed)
        self.names.append(report.id)


def told(*names: str) -> list[Report]:
    return [Failed(name, "") for name in names]


def test_nothing_leaves_before_it_is_released() -> None:
    pipe = Sent()
    outbox = Outbox(pipe)
    outbox.hold(*told("a", "b"))
    assert pipe.names == []
    outbox.release()
    outbox.flush()
    assert pipe.names == ["a", "b"]
    outbox.close()


def test_a_release_does_not_wait_and_the_order_stays() -> None:
    pipe = Sent(is_open=False)
    outbox = Outbox(pipe)
    outbox.hold(*told("a"))
    outbox.release()
    outbox.hold(*told("b", "c"))
    outbox.release()
    outbox.hold(*told("d"))
    assert pipe.names == []
    pipe.gate.set()
    outbox.flush()
    assert pipe.names == ["a", "b", "c", "d"]
    outbox.close()


def test_what_is_held_leaves_at_the_end() -> None:
    pipe = Sent()
    outbox = Outbox(pipe)
    outbox.flush()
    outbox.hold(*told("last"))
    outbox.close()
    assert pipe.names == ["last"]
