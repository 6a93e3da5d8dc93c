"""Vectors over the whole way from the client half to a worker process and back."""

import asyncio
import os
import signal
from pathlib import Path

import numpy as np

from engine.client.engine import Engine, TokenStream
from engine.client.pooling import TextInput
from engine.config import EngineConfig
from engine.request import Pooling, Request, SamplingParams
from tests.embedders import compiled

TEXTS = [f"The capital of country {number} is not far from the sea. " * (1 + number % 3) for number in range(40)]


async def vector(stream: TokenStream) -> bytes:
    deltas = [delta async for delta in stream]
    assert len(deltas) == 1 and deltas[0].finish is not None and deltas[0].timings is not None
    return deltas[0].vector


async def submitted(engine: Engine) -> list[TokenStream]:
    prompts = [await engine.pooled_prompt(TextInput(text, "input")) for text in TEXTS]
    params = SamplingParams(max_tokens=0)
    return [engine.submit(Request(str(n), ids, params, pooling=Pooling())) for n, ids in enumerate(prompts)]


async def test_texts_survive_the_death_of_their_worker(tmp_path: Path) -> None:
    """They are not counted as queued requests, and the next worker gives the same vectors."""
    engine = Engine(EngineConfig(str(compiled("embedder", tmp_path)), threads=1, max_rows=16))
    try:
        await engine.start()
        assert engine.info.max_input == 256
        expected = await asyncio.gather(*map(vector, await submitted(engine)))
        streams = await submitted(engine)
        pid = engine.worker_pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        found = await asyncio.gather(*map(vector, streams))
        assert engine.restarts == 1 and engine.unfinished == 0
        for one, other in zip(expected, found, strict=True):
            assert np.allclose(np.frombuffer(one, "<f4"), np.frombuffer(other, "<f4"), atol=1e-4)
    finally:
        await engine.close()
