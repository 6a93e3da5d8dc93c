"""OpenVINO GenAI's continuous batching behind HTTP: `python openvino_server.py FILE PORT THREADS SLOTS`.

Runs in the environment of openvino-genai, which has no server of its own.
"""

import queue
import sys
import threading
from itertools import count
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
from completions import Parts, serve

CACHE_GB = 2


class OpenVinoPipeline:
    """The pipeline and the thread that steps it. Requests come and go in that thread alone."""

    def __init__(self, path: str, threads: int, slots: int) -> None:
        scheduling = genai.SchedulerConfig()
        scheduling.cache_size, scheduling.max_num_seqs = CACHE_GB, slots
        scheduling.dynamic_split_fuse, scheduling.enable_prefix_caching = True, True
        self._pipeline = genai.ContinuousBatchingPipeline(path, scheduling, "CPU", {"INFERENCE_NUM_THREADS": threads})
        self._tokenizer = self._pipeline.get_tokenizer()
        self._arrivals: queue.Queue[tuple[list[int], Any, Parts]] = queue.Queue()
        self._numbers = count()
        threading.Thread(target=self._run, daemon=True).start()

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt."""
        return list(self._tokenizer.encode(text).input_ids.data[0].tolist())

    def decode(self, ids: list[int]) -> str:
        """Their text."""
        return str(self._tokenizer.decode(ids))

    def ask(self, ids: list[int], most: int, ignores_end: bool) -> Parts:
        """Queue a prompt; the parts of its answer come as they are made."""
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = most, ignores_end, False
        answer: Parts = queue.Queue()
        self._arrivals.put((ids, config, answer))
        return answer

    def _run(self) -> None:
        running: dict[int, tuple[Any, Parts]] = {}
        while True:
            self._take(running, wait=not running)
            if self._pipeline.has_non_finished_requests():
                self._pipeline.step()
            for number, (handle, answer) in list(running.items()):
                if handle.can_read():
                    for result in handle.read().values():
                        answer.put(list(result.generated_ids))
                elif handle.get_status() != genai.GenerationStatus.RUNNING:
                    answer.put(None)
                    del running[number]

    def _take(self, running: dict[int, tuple[Any, Parts]], wait: bool) -> None:
        while wait or not self._arrivals.empty():
            ids, config, answer = self._arrivals.get()
            number = next(self._numbers)
            handle = self._pipeline.add_request(number, ov.Tensor(np.array([ids], np.int64)), config)
            running[number] = handle, answer
            wait = False


def main() -> int:
    """Serve until killed."""
    path, port, threads, slots = sys.argv[1], *map(int, sys.argv[2:5])
    serve(OpenVinoPipeline(path, threads, slots), port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
