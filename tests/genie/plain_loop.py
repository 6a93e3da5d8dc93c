"""Greedy decoding of one sequence over a bundle, written down as plainly as the contract allows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, TensorSpec

Run = Callable[[str, Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


@dataclass
class PlainLoop:
    """run(graph name, inputs) -> outputs. Every variant must have the same number of rows as asked for.

    Where prompts are computed without logits, that is for all of their tokens but the last.
    """

    manifest: Manifest
    run: Run
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)

    def greedy(self, prompt: list[int], count: int, prompt_rows: int = 1, decode_rows: int = 1) -> list[int]:
        """`count` tokens after the prompt: steps of `prompt_rows`, then of `decode_rows` with one of them in use."""
        caches: dict[str, np.ndarray] = {}
        tokens, done = list(prompt), 0
        while len(tokens) < len(prompt) + count:
            rows = prompt_rows if len(tokens) - done > 1 else decode_rows
            is_kv_only = self._graph(rows, done).kind is GraphKind.DECODER_PREFILL
            fresh = tokens[done : min(done + rows, len(tokens) - is_kv_only)]
            logits = self._step(rows, fresh, done, caches)
            done += len(fresh)
            if done == len(tokens):
                assert logits is not None
                tokens.append(int(logits[0, len(fresh) - 1].argmax()))
        return tokens[len(prompt) :]

    def _step(self, rows: int, fresh: list[int], done: int, caches: dict[str, np.ndarray]) -> np.ndarray | None:
        graph = self._graph(rows, done)
        context = graph.context
        assert context is not None
        ids = np.zeros((1, rows), np.int32)
        ids[0, : len(fresh)] = fresh
        visible = np.zeros((rows, context), bool)
        visible[:, :done] = True
        visible[:, context - rows :] = np.tri(rows, dtype=bool)
        rope = self.manifest.model.rope
        positions = done + np.arange(rows)
        angles = (positions[:, None].astype(np.float32) * np.array(rope.inverse_frequencies, np.float32)).astype(float)
        values = {
            "input_ids": ids,
            "attention_mask": visible,
            "position_ids_cos": np.cos(angles) * rope.factor,
            "position_ids_sin": np.sin(angles) * rope.factor,
            "cache_index": np.array([context - rows], np.int32),
        }
        feed = {spec.name: self._input(spec, values, caches, done) for spec in graph.inputs}
        out = dict(self.run(graph.name, feed))
        for spec in graph.outputs:
            if spec.name.startswith("past_"):
                axis = 3 if "key" in spec.name else 2
                kept = np.take(out[spec.name], np.arange(len(fresh)), axis)
                name = spec.name.replace("_out", "_in")
                caches[name] = np.concatenate([caches[name], kept], axis) if name in caches else kept
        if graph.kind is GraphKind.DECODER_PREFILL:
            return None
        head = next(
            (graph for graph in self.manifest.graphs if graph.kind is GraphKind.LMHEAD and graph.rows == rows), None
        )
        if head is not None:
            taken = next(spec for spec in head.inputs if spec.name != "weight")
            given = taken.name if taken.name in out else _result(graph).name  # parts may differ in the hidden's name
            out = dict(self.run(head.name, {taken.name: out[given], **self.weights}))
        spec = _result(head or graph)
        logits = out["logits"].astype(np.float32)
        return logits if spec.scale is None else (logits - spec.zero_point) * spec.scale

    def _graph(self, rows: int, done: int) -> GraphSpec:
        fitting = [
            graph
            for graph in self.manifest.graphs
            if graph.rows == rows and graph.context is not None and graph.context - rows >= done
        ]
        return min(fitting, key=lambda graph: graph.context or 0)

    def _input(
        self, spec: TensorSpec, values: Mapping[str, np.ndarray], caches: Mapping[str, np.ndarray], done: int
    ) -> np.ndarray:
        dtype = np.dtype(spec.dtype)
        if spec.name.startswith("past_"):
            made = np.full(spec.shape, spec.zero_point or 0, dtype)
            if spec.name in caches:
                where = (..., slice(0, done)) if "key" in spec.name else (..., slice(0, done), slice(None))
                made[where] = caches[spec.name]
            return made
        value = values[spec.name]
        if spec.name == "attention_mask":
            masked = 0 if spec.scale is not None else -1000
            return np.where(value, spec.zero_point or 0, masked).astype(dtype).reshape(spec.shape)
        if spec.scale is not None:
            codes = np.rint(value / spec.scale) + spec.zero_point
            return np.clip(codes, 0, np.iinfo(dtype).max).astype(dtype).reshape(spec.shape)
        return value.astype(dtype).reshape(spec.shape)


def _result(graph: GraphSpec) -> TensorSpec:
    """The output that is not a cache."""
    return next(spec for spec in graph.outputs if not spec.name.startswith("past_"))
