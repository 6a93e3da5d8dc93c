"""An exported block-diffusion graph on onnxruntime's CPU provider."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.diffusion_export.description import OUTPUTS, load_export
from engine.errors import BundleError
from engine.files.names import confined
from engine.files.opening import open_regular
from engine.graphs.onnx_sessions import ORT_TYPES, cpu_provider


class ExportedGraph:
    """A session and what it takes; calling `run` is the forward function of `BlockLoop`."""

    def __init__(self, folder: Path, threads: int = 0) -> None:
        """BundleError when the graph cannot be loaded or does not take what its description says."""
        self.export = load_export(folder)
        try:
            path = confined(folder, self.export.graph)
            open_regular(path).close()  # onnxruntime would wait for the writer of a pipe
        except OSError as error:
            raise BundleError(f"graph {self.export.graph} cannot be loaded: {error}") from error
        try:
            self._session = cpu_provider(threads).open(path)
        except Exception as error:  # onnxruntime's exceptions share no base class of their own
            raise BundleError(f"graph {self.export.graph} cannot be loaded: {str(error)[:300]}") from error
        found = {node.name: tuple(node.shape) for node in self._session.get_inputs()}
        if found != self.export.input_shapes():
            raise BundleError(f"graph {self.export.graph} takes {found}, not what its description says")
        types = {ORT_TYPES.get(node.type) for node in self._session.get_outputs()}
        if types != {self.export.dtype}:
            raise BundleError(f"graph {self.export.graph} gives {types}, its description says {self.export.dtype}")

    def run(self, inputs: dict[str, NDArray[np.generic]]) -> tuple[NDArray[np.float32], NDArray[np.generic]]:
        """Logits [b, B, vocab] and the updated cache."""
        logits, cache = self._session.run(list(OUTPUTS), inputs)
        return logits, cache
