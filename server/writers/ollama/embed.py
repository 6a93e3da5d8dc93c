"""The answers of /api/embed and /api/embeddings."""

from collections.abc import Sequence
from typing import Any

from engine.bundle.pooling import PoolingSpec
from engine.pooling.vectors import finished
from server.writers.ollama.timing import Stopwatch


def embed_answer(
    model: str, vectors: Sequence[bytes], spec: PoolingSpec, dimensions: int | None, tokens: int, stopwatch: Stopwatch
) -> dict[str, Any]:
    """All vectors. vectors: of each text, as the engine gave them."""
    found = [finished(raw, spec, dimensions).tolist() for raw in vectors]
    took = stopwatch.durations(None)
    spent = {name: took[name] for name in ("total_duration", "load_duration")}
    return {"model": model, "embeddings": found, **spent, "prompt_eval_count": tokens}


def embeddings_answer(vector: bytes, spec: PoolingSpec) -> dict[str, Any]:
    """The one vector of the older route."""
    return {"embedding": finished(vector, spec).tolist()}
