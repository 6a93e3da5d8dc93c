"""The `options` of /api/chat and /api/generate: how to sample, and hints for Ollama's own runner.

A field that is not honoured has the narrow type that is, so that anything else is refused by name.
"""

from typing import Annotated, Literal

from pydantic import Field

from server.protocol.fields import (
    MAX_TOKENS,
    Body,
    Penalty,
    Probability,
    RepetitionPenalty,
    Seed,
    Temperature,
    TokenLimit,
    TopK,
)
from server.protocol.generation_request import Stop

One = Annotated[float, Field(ge=1, le=1)]


class OllamaOptions(Body):
    """Null means the default. The context is always the model's: `num_ctx` may be as much, and makes it no smaller."""

    num_predict: Annotated[int, Field(ge=-2, le=MAX_TOKENS)] | None = None
    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: Probability | None = None
    min_p: Probability | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    repeat_penalty: RepetitionPenalty | None = None
    repeat_last_n: Literal[-1, 0] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    num_ctx: Annotated[int, Field(ge=1, le=MAX_TOKENS)] | None = None

    # Known, honoured where they change nothing.
    typical_p: One | None = None
    tfs_z: One | None = None
    mirostat: Literal[0] | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    penalize_newline: Literal[True] | None = None
    vocab_only: Literal[False] | None = None
    embedding_only: Literal[False] | None = None

    # How Ollama's runner lays out a model. A bundle says that itself; nothing of them is visible in an answer.
    num_keep: TokenLimit | None = None
    num_batch: int | None = None
    num_gpu: int | None = None
    main_gpu: int | None = None
    num_thread: int | None = None
    numa: bool | None = None
    low_vram: bool | None = None
    f16_kv: bool | None = None
    logits_all: bool | None = None
    use_mmap: bool | None = None
    use_mlock: bool | None = None
