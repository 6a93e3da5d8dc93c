"""The row inputs of one fused graph: ids, mask, rotary rows, control. Numpy only; graphs bind to the arrays.

Legend: N = rows, P = past columns.
"""

import numpy as np
from numpy.typing import NDArray

from engine.bundle.encoding import Array, Encoding, encoding_of
from engine.bundle.fused import CONTROL
from engine.bundle.manifest import GraphSpec, Manifest, TensorSpec
from engine.graphs.batch import PackedBatch
from engine.graphs.fused.placement import PADDING, Placement
from engine.graphs.rotary import RotaryTable

MASK = "attention_mask"
ROTARY = {"position_ids_cos": True, "position_ids_sin": False}
Tables = dict[tuple[bool, Encoding], RotaryTable]


class FusedInputs:
    """Buffers by tensor name, written anew for every pass. A row that holds nothing has id and position 0."""

    def __init__(self, manifest: Manifest, graph: GraphSpec) -> None:
        assert manifest.fused is not None
        self._past = manifest.fused.past
        self._rope = manifest.model.rope
        named = {"input_ids", CONTROL, MASK, *ROTARY}
        self._specs: dict[str, TensorSpec] = {tensor.name: tensor for tensor in graph.inputs if tensor.name in named}
        self.arrays: dict[str, Array] = {
            name: np.zeros([int(size) for size in tensor.shape], tensor.dtype) for name, tensor in self._specs.items()
        }
        self._codes = encoding_of(self._specs[MASK]).mask_codes()

    def fill(self, batch: PackedBatch, placement: Placement, tables: Tables) -> None:
        """Write a pass into every buffer. `tables` is the caller's cache of rotary tables and grows here."""
        rows = placement.shape.rows
        self.arrays["input_ids"].reshape(rows)[...] = _moved(batch.input_ids, placement)
        positions = _moved(batch.positions, placement)
        for name, is_cos in ROTARY.items():
            key = (is_cos, encoding_of(self._specs[name]))
            if key not in tables:
                tables[key] = RotaryTable(self._rope, *key)
            tables[key].fill(positions, self.arrays[name].reshape(rows, -1))
        if CONTROL in self.arrays:
            self.arrays[CONTROL].reshape(-1)[...] = placement.control()
        self._fill_mask(placement)

    def _fill_mask(self, placement: Placement) -> None:
        """Each row sees its own sequence's past, the rows of its sequence before it, and itself. Nothing crosses."""
        hidden, seen = self._codes
        mask = self.arrays[MASK].reshape(placement.shape.rows, -1)
        mask[...] = hidden
        prefill, base, end = placement.prefill, placement.base, placement.shape.prefill_rows
        if prefill is not None:
            mask[base:end, : prefill.past] = seen
            own = mask[base:end, self._past + base : self._past + end]
            own[np.tri(prefill.count, dtype=np.bool_)] = seen
        for row, decode in enumerate(placement.decodes, placement.shape.rows - len(placement.decodes)):
            mask[row, : decode.past] = seen
            mask[row, self._past + row] = seen


def _moved(values: NDArray[np.int32], placement: Placement) -> NDArray[np.int32]:
    """Numbers [rows of the batch] in the graph's rows [N], 0 in the others."""
    moved = np.zeros(placement.shape.rows, np.int32)
    used = placement.row_of != PADDING
    moved[placement.row_of[used]] = values[used]
    return moved
