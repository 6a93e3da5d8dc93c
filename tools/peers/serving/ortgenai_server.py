"""onnxruntime-genai's engine behind HTTP: `python ortgenai_server.py FOLDER PORT THREADS SLOTS`.

Runs in the environment of onnxruntime-genai, which has no server of its own. The folder is what its builder makes; on
the CPU its engine takes as many requests as there are slots into a batch, and the next ones when that one is through.
"""

import json
import os
import queue
import sys
import threading
from typing import Any

import numpy as np
import onnxruntime_genai as genai
from completions import Parts, serve

EVENTS = 256


class GenaiEngine:
    """The engine and the thread that runs it. Requests come and go in that thread alone."""

    def __init__(self, folder: str, threads: int, slots: int) -> None:
        config = genai.Config(folder)
        room = {"engine": {"static_batching": {"max_batch_size": slots}}}
        options = {"model": {"decoder": {"session_options": {"intra_op_num_threads": threads}}}}
        config.overlay(json.dumps(room | options))
        self._model = genai.Model(config)
        self._tokenizer = genai.Tokenizer(self._model)
        self._arrivals: queue.Queue[tuple[list[int], int, bool, Parts]] = queue.Queue()
        threading.Thread(target=self._run_or_end, daemon=True).start()

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt."""
        return list(map(int, self._tokenizer.encode(text)))

    def decode(self, ids: list[int]) -> str:
        """Their text."""
        return str(self._tokenizer.decode(np.array(ids, np.int32)))

    def ask(self, ids: list[int], most: int, ignores_end: bool) -> Parts:
        """Queue a prompt; the parts of its answer come as they are made."""
        answer: Parts = queue.Queue()
        self._arrivals.put((ids, most, ignores_end, answer))
        return answer

    def _run_or_end(self) -> None:
        try:
            self._run()
        finally:
            os._exit(1)  # a server without its engine would let clients wait

    def _run(self) -> None:
        running: list[tuple[Any, Parts]] = []
        engine = genai.Engine(self._model)  # only the thread that makes it may use it
        events = engine.create_event_buffer(EVENTS)
        while True:
            while not running or not self._arrivals.empty():
                running.append(self._begin(engine, *self._arrivals.get()))
            for event in engine.run(events):
                found = next(each for each in running if each[0] == event.request)
                if event.flags & genai.EngineEventFlags.TOKEN:
                    found[1].put([event.token])
                if event.flags & (genai.EngineEventFlags.TURN_FINISHED | genai.EngineEventFlags.FAILED):
                    found[1].put(None)
                    found[0].close()
                    running.remove(found)

    @staticmethod
    def _begin(engine: Any, ids: list[int], most: int, ignores_end: bool, answer: Parts) -> tuple[Any, Parts]:
        request = engine.create_request()
        options = genai.TurnOptions(request)
        options.set_do_sample(False)
        options.set_max_generated_tokens(most)
        options.set_min_generated_tokens(most if ignores_end else 0)
        request.begin_turn(np.array(ids, np.int32), options)
        return request, answer


def main() -> int:
    """Serve until killed."""
    folder, port, threads, slots = sys.argv[1], *map(int, sys.argv[2:5])
    serve(GenaiEngine(folder, threads, slots), port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
