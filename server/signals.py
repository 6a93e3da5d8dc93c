"""What a signal that ends a process does, from the first instant on: end at once, unwind, or tell the server."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import NoReturn

Handler = Callable[[int, FrameType | None], object]


def stop_signals() -> tuple[int, ...]:
    """The signals that ask to end in order: SIGTERM, SIGHUP unless ignored (nohup), Windows' Ctrl-Break; not Ctrl-C."""
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name)]
    return tuple(number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN)


def end_at_once() -> None:
    """End with 128 + the signal's number, as a shell reports it, for as long as nothing else is asked for. Python
    leaves these signals to the system, which ignores them for process 1 of a container. No exception: one that is
    raised while modules are imported may be swallowed."""
    for number in stop_signals():
        signal.signal(number, _end)


@contextmanager
def handled(numbers: Iterable[int], handler: Handler, restores: bool = True) -> Iterator[None]:
    """These signals go to `handler` in this block, and to who had them before afterwards. Main thread only. restores:
    False when another handler follows at once, so that no signal falls in between."""
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items() if restores else ():
            signal.signal(number, signal.SIG_DFL if before is None else before)


def unwinding() -> AbstractContextManager[None]:
    """In this block a signal raises SystemExit, so that child processes and unfinished files are removed. Ctrl-C too:
    `subprocess` does not wait for a child that it kills at a KeyboardInterrupt."""
    return handled((signal.SIGINT, *stop_signals()), unwind)


def ending_in_order() -> AbstractContextManager[None]:
    """As `unwinding`, for commands of a process without children: Ctrl-C stays a KeyboardInterrupt."""
    return handled(stop_signals(), unwind)


def end_with(code: int) -> None:
    """From now on every signal ends the process at once with `code`: nothing is left that could wait for it."""
    for number in (signal.SIGINT, *stop_signals()):
        signal.signal(number, lambda *_: os._exit(code))


def ignore() -> None:
    """Nothing but the exit is left to do: no signal may change its code any more."""
    for number in (signal.SIGINT, *stop_signals()):
        signal.signal(number, signal.SIG_IGN)


def unwind(number: int, frame: FrameType | None) -> NoReturn:
    """A handler that ends the process through every `finally` on the way, with 128 + the signal's number."""
    raise SystemExit(128 + number)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    os._exit(128 + number)
