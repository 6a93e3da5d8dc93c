"""Logits as a client is served: a text goes through the engine of the worker, its scheduler and its caches."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.variant import ShapeTable
from engine.config import EngineConfig
from engine.errors import EngineFailure
from engine.evaluation.models import EvaluatedModel, TokenVocabulary, bundle_facts
from engine.request import Request, SamplingParams
from engine.runtime.interface import Logits, PackedBatch, Runtime
from engine.worker.assembly import assemble, open_onnx
from engine.worker.settings import OFF
from engine.worker.step import EngineLoop

Float32 = NDArray[np.float32]
SERVED = "served"
BEHIND = 0  # a token after the text, so that the logits of its last token are wanted; nobody sees its own


@dataclass(slots=True)
class LogitsTap:
    """Keeps the logits [tokens, vocab] that the passes of one sequence give, by position."""

    rows: Float32 = field(default_factory=lambda: np.empty((0, 0), np.float32))

    def open_runtime(self, folder: Path, manifest: Manifest, shapes: ShapeTable, config: EngineConfig) -> Runtime:
        """The runtime that would serve, with the tap on what it gives."""
        runtime = open_onnx(folder, manifest, shapes, config)
        run = runtime.run

        def tapped(batch: PackedBatch) -> Logits:
            logits = run(batch)
            places = batch.positions[batch.logit_rows]
            wanted = places < len(self.rows)
            if wanted.any():  # no text is read while passes are timed
                self.rows[places[wanted]] = logits.decoded()[wanted]
            return logits

        # The instance itself: what else a runtime can do is asked of its type.
        runtime.run = tapped  # type: ignore[method-assign]
        return runtime


def open_served(name: str, folder: Path, cost_cache: str, stack: ExitStack) -> EvaluatedModel:
    """A bundle behind the engine that serves it by default settings, until the stack is closed. BundleError.

    cost_cache: folder of pass times, by which the scheduler chooses passes; "" = measured now.
    """
    facts = bundle_facts(name, folder)
    tap = LogitsTap()
    # Threads that spin would be those of all graphs of the process; what is computed is the same.
    assembled = assemble(EngineConfig(str(folder), cost_cache=cost_cache, spin=OFF), tap.open_runtime)
    stack.callback(assembled.runtime.close)
    stack.callback(assembled.loop.close)
    longest = min(facts.longest, assembled.ready.max_tokens_per_sequence) - 1
    return EvaluatedModel(
        name=name,
        form=f"{facts.form}, {SERVED}",
        device=assembled.ready.device,
        size=facts.size,
        longest=longest,
        made_for=facts.manifest.max_context,
        vocabulary=TokenVocabulary(folder, facts.manifest.text, facts.manifest.model.vocab),
        logits=_through(assembled.loop, tap, facts.manifest.model.vocab),
    )


def _through(loop: EngineLoop, tap: LogitsTap, vocab: int) -> Callable[[Sequence[int]], Float32]:
    asked = Request("", (), SamplingParams(max_tokens=0, temperature=0.0, prompt_logprobs=0))
    count = 0

    def logits(tokens: Sequence[int]) -> Float32:
        nonlocal count
        count += 1
        tap.rows = np.full((len(tokens), vocab), np.nan, np.float32)
        loop.add(replace(asked, id=f"text {count}", prompt_ids=(*tokens, BEHIND)), (), 0, 0.0)
        while loop.has_work:
            failures = loop.step().failures
            if failures:
                raise EngineFailure(f"the engine gave a text up: {failures[0].message}")
        return tap.rows

    return logits
