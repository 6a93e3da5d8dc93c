"""How fast this machine reads its memory: each decode step reads all weights."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

LEAST_READ, READ_BY_CORE, RATE_ROUNDS = 256 << 20, 64 << 20, 4  # bytes: more than caches hold


def memory_rate() -> float:
    """Bytes of memory that all cores together read in a second: the best of a few sums."""
    cores = os.cpu_count() or 1
    parts = np.ones((cores, max(READ_BY_CORE, LEAST_READ // cores) // 8), np.int64)
    with ThreadPoolExecutor(cores) as readers:
        took_s = []
        for _ in range(RATE_ROUNDS):
            began_s = time.perf_counter()
            list(readers.map(np.sum, parts))
            took_s.append(time.perf_counter() - began_s)
    return parts.nbytes / min(took_s)
