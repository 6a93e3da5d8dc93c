"""The stages of a start, named in the log as they begin and timed when all are over."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Stages:
    """One stage follows the other; where a start fails or hangs, the last line of the debug log says in which."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._taken_s: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Name a stage when it begins; its time counts when it ends without an error."""
        self._log.debug("start: %s", name)
        began = self._clock()
        yield
        self._taken_s[name] = self._clock() - began

    def finish(self) -> None:
        """One line with the time of every stage, in their order."""
        times = ", ".join(f"{name} {seconds:.2f}" for name, seconds in self._taken_s.items())
        self._log.info("started in %.2f s: %s", sum(self._taken_s.values()), times)
