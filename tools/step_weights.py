"""Bytes of weights that the steps of a bundle read: every matrix once, and of experts those that some row chose."""

from dataclasses import dataclass
from pathlib import Path

import onnx

from engine.bundle.manifest import GraphKind, load_manifest
from engine.bundle.segments import LINEAR_DATA

EXPERTS = "_experts_"  # in the names of what all experts of a layer have
LENGTH, LOCATION = "length", "location"


@dataclass(frozen=True, slots=True)
class StepWeights:
    """matrices: bytes that every step reads. expert: bytes of one expert of one layer, 0 = there are none."""

    matrices: int
    expert: float = 0.0

    def read(self, steps: float, experts: float) -> float:
        """Bytes of so many steps, over all of which so many different experts were read."""
        return self.matrices * steps + self.expert * experts


def step_weights(folder: Path) -> StepWeights:
    """Of a segmented bundle, whose prompts are computed by then. BundleError when it is none."""
    manifest = load_manifest(folder)
    matrices = experts = 0
    for graph in manifest.graphs:
        if graph.kind is GraphKind.LINEAR:
            for name, size in _stored(folder / graph.file):
                matrices, experts = (matrices, experts + size) if EXPERTS in name else (matrices + size, experts)
    spec = manifest.model.experts
    return StepWeights(matrices, experts / (len(spec.layers) * spec.count) if spec else 0.0)


def _stored(graph: Path) -> list[tuple[str, int]]:
    """Name and bytes of each tensor of a graph's matrices."""
    found = []
    for tensor in onnx.load(graph, load_external_data=False).graph.initializer:
        told = {entry.key: entry.value for entry in tensor.external_data}
        if told.get(LOCATION) == LINEAR_DATA:
            found.append((tensor.name, int(told[LENGTH])))
    return found
