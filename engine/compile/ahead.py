"""Work done on threads a few items ahead of who takes the results: numpy lets go of the interpreter in long runs."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
THREADS = 2  # beside the one that reads items and writes results


def ahead(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """What `work` makes of each item, in order; at most `THREADS` + 1 results are waiting. Items are read here.

    Errors of `work` are raised where its result would come.
    """
    with ThreadPoolExecutor(THREADS, thread_name_prefix="ahead") as pool:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
