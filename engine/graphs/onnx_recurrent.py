"""Runs the recurrent layers of a segmented bundle: one graph for all of them, bound to the states of sequences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.conv_weights import read_conv_weights
from engine.bundle.manifest import Manifest
from engine.bundle.recurrent import RecurrentSpec
from engine.bundle.recurrent_forms import (
    BETA,
    CONV_IN,
    CONV_WEIGHT,
    DECAY,
    MEMORY,
    MEMORY_OUT,
    OUT,
    RECURRENT,
    TAIL,
    TAIL_OUT,
)
from engine.graphs.batch import PackedSegment
from engine.graphs.linear_chain import RowBuffers
from engine.graphs.onnx_binding import Binding, bind_all
from engine.graphs.onnx_library import ort
from engine.graphs.recurrent_states import RecurrentState, RecurrentStates, StateStep

STEP_ROWS = (CONV_IN, DECAY, BETA)


@dataclass(frozen=True, slots=True)
class _BoundStep:
    """The graph bound to rows and two states, once for each layer. source: kept alive, as its id is part of a key."""

    source: RecurrentState
    layers: list[Binding]


def open_recurrent(
    folder: Path, manifest: Manifest, sessions: Mapping[str, ort.InferenceSession], rows: RowBuffers
) -> "RecurrentLayers | None":
    """The recurrent layers of a bundle, None where there are none. BundleError when their weights cannot be read."""
    spec = manifest.model.recurrent
    if spec is None:
        return None
    return RecurrentLayers(spec, sessions[RECURRENT], rows, read_conv_weights(folder, manifest))


class RecurrentLayers:
    """Owns the states. weights: of the convolutions [R, C, W]."""

    def __init__(
        self, spec: RecurrentSpec, session: ort.InferenceSession, rows: RowBuffers, weights: NDArray[np.float32]
    ) -> None:
        self.states = RecurrentStates(spec)
        self._session = session
        self._rows = rows
        self._weights = weights[:, :, None]

    def bound(
        self, segments: Sequence[PackedSegment], steps: Sequence[Sequence[StateStep]], rows: int
    ) -> list[list[Binding]]:
        """For each recurrent layer what to run, in order: the steps of all segments of a pass of N rows."""
        found = [
            self._bound_step((rows - segment.start - step.start, step.count), step)
            for segment, own in zip(segments, steps, strict=True)
            for step in own
        ]
        return [[step.layers[layer] for step in found] for layer in range(len(self._weights))]

    def _bound_step(self, place: tuple[int, int], step: StateStep) -> _BoundStep:
        key = (*place, id(step.source))
        found = step.target.bound.get(key)
        if not isinstance(found, _BoundStep):
            layers = [self._bind(place, layer, step) for layer in range(len(self._weights))]
            found = _BoundStep(step.source, layers)
            step.target.remember(key, found)
        return found

    def _bind(self, place: tuple[int, int], layer: int, step: StateStep) -> Binding:
        source, target = step.source, step.target
        inputs = {name: self._rows.some(name, *place) for name in STEP_ROWS}
        states = {TAIL: source.tails[layer], MEMORY: source.memories[layer]}
        written = {TAIL_OUT: target.tails[layer], MEMORY_OUT: target.memories[layer]}
        return bind_all(
            self._session,
            {**inputs, CONV_WEIGHT: self._weights[layer], **states},
            {OUT: self._rows.some(OUT, *place), **written},
        )
