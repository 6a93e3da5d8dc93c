"""Updated caches as outputs of a fused graph: its fresh keys and values written at the columns that its control says.

The nodes are added to a finished graph, whatever type its caches have: keys and values are moved, never computed with.
Shapes: n rows of a branch, P past columns, K KV heads, H head size.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from engine.bundle.fused import CONTROL, CONTROL_HEAD, FusedShape, cache_tensors, fresh_tensors
from engine.bundle.manifest import ModelSpec, TensorSpec
from engine.compile.fused.layers import Branch, branches_of

KEY_AXIS, VALUE_AXIS = 3, 2  # of the columns


@dataclass(slots=True)
class CacheUpdater:
    """Adds the nodes to one graph. Rows that hold nothing are written into the last column, which nobody reads.

    has_pairs: codes are moved as numbers between a dequantise and a quantise node, the one form in which an NPU's back
    end knows that they are codes; a CPU moves them as they are.
    """

    graph: onnx.GraphProto
    model: ModelSpec
    shape: FusedShape
    past: int
    has_pairs: bool = False

    def add(self, inputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """Write every updated cache; the new outputs, each stored as the cache it is of."""
        caches = {tensor.name: tensor for tensor in inputs}
        made = []
        for branch in branches_of(self.shape):
            columns = self._columns(branch)
            indices = self._spread(columns, branch, KEY_AXIS), self._spread(columns, branch, VALUE_AXIS)
            for layer in range(self.model.layers):
                names = zip(
                    cache_tensors("past", branch.cache, layer),
                    fresh_tensors(layer),
                    cache_tensors("updated_past", branch.cache, layer),
                    indices,
                    (KEY_AXIS, VALUE_AXIS),
                    strict=True,
                )
                for past, fresh, updated, index, axis in names:
                    spec = caches[past]
                    rows = self._rows(spec, fresh, axis, branch)
                    self._moved(spec, "ScatterElements", [past, rows], [index], updated, axis=axis)
                    made.append(TensorSpec(updated, spec.dtype, spec.shape, spec.scale, spec.zero_point))
        return tuple(made)

    def _rows(self, spec: TensorSpec, fresh: str, axis: int, branch: Branch) -> str:
        """The branch's fresh keys or values."""
        bounds = [
            self._constant(f"int_{number}", np.array([number], np.int64))
            for number in (branch.start, branch.stop, axis)
        ]
        return self._moved(spec, "Slice", [fresh], bounds, f"{branch.cache}_{fresh}")

    def _moved(
        self, spec: TensorSpec, kind: str, data: list[str], where: list[str], output: str, **attributes: Any
    ) -> str:
        """A node that moves numbers stored as `spec` says. data: its first input and its last; where: those between."""
        if not self.has_pairs or spec.scale is None:
            return self._node(kind, [data[0], *where, *data[1:]], output, **attributes)
        label = f"{spec.scale!r}_{spec.zero_point}"
        scale = self._scalar(f"scale_{label}", np.array(spec.scale, np.float32))
        zero = self._scalar(f"zero_{label}", np.array(spec.zero_point, spec.dtype))
        real = [
            self._node("DequantizeLinear", [name, scale, zero], f"{output}_{index}_real")
            for index, name in enumerate(data)
        ]
        made = self._node(kind, [real[0], *where, *real[1:]], f"{output}_float", **attributes)
        return self._node("QuantizeLinear", [made, scale, zero], output)

    def _columns(self, branch: Branch) -> str:
        """Where each row of a branch goes, int32 [n]."""
        unused = self._constant("unused", np.full(branch.rows, self.past - 1, np.int32))
        if branch.cache == "prefill":
            # Row r of n holds token past + count + r - n, if that is not before the first of the chunk.
            ahead = self._constant("rows_ahead", np.arange(-branch.rows, 0, dtype=np.int32))
            place = self._node("Add", [self._control(2), ahead], "prefill_place")
            is_used = self._node(
                "Greater", [place, self._constant("before_first", np.array([-1], np.int32))], "prefill_used"
            )
            column = self._node("Add", [self._control(4), place], "prefill_column")
            return self._node("Where", [is_used, column, unused], "prefill_columns")
        slot = branch.start - self.shape.prefill_rows
        # Decodes take the last slots.
        least = self._constant(f"idle_{slot}", np.array([self.shape.slots - slot - 1], np.int32))
        is_used = self._node("Greater", [self._control(1), least], f"{branch.cache}_used")
        return self._node("Where", [is_used, self._control(CONTROL_HEAD + slot), unused], f"{branch.cache}_columns")

    def _control(self, index: int) -> str:
        return self._cut(CONTROL, 0, index, index + 1)

    def _spread(self, columns: str, branch: Branch, axis: int) -> str:
        """Columns [n] for every head and number of a branch's keys [K, 1, H, n] or values [K, 1, n, H]."""
        sizes = [self.model.kv_heads, 1, self.model.head_dim, self.model.head_dim]
        sizes[axis] = branch.rows
        flat = [1, 1, 1, 1]
        flat[axis] = branch.rows
        name = f"{branch.cache}_at_{axis}"
        shaped = self._node(
            "Reshape", [columns, self._constant(f"{name}_flat", np.array(flat, np.int64))], f"{name}_row"
        )
        return self._node("Expand", [shaped, self._constant(f"{name}_sizes", np.array(sizes, np.int64))], name)

    def _cut(self, x: str, axis: int, start: int, stop: int) -> str:
        bounds = [self._constant(f"int_{number}", np.array([number], np.int64)) for number in (start, stop, axis)]
        name = f"{x}_{start}_to_{stop}"
        if any(name in node.output for node in self.graph.node):
            return name
        return self._node("Slice", [x, *bounds], name)

    def _node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.graph.node.append(helper.make_node(kind, inputs, [output], name=f"update_{output}", **attributes))
        return output

    def _constant(self, name: str, value: NDArray[np.generic]) -> str:
        return self._scalar(f"{name}_{len(value)}", value)

    def _scalar(self, name: str, value: NDArray[np.generic]) -> str:
        label = f"update_{name}"
        if all(tensor.name != label for tensor in self.graph.initializer):
            self.graph.initializer.append(numpy_helper.from_array(value, label))
        return label
