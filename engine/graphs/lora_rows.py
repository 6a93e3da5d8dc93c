"""The adapters of a segmented bundle, and which of them each row of a pass takes.

Legend: L = layers, N = rows, J = ranks of adapters side by side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.adapters.adapter import Adapter
from engine.bundle.encoding import Array
from engine.bundle.lora import LoraModule
from engine.bundle.lora_tensors import MASK, A, B
from engine.bundle.manifest import Manifest
from engine.graphs.batch import PackedBatch

Floats = NDArray[np.float32]
Masks = dict[str, Floats]
NOBODY = -1  # the adapter of rows that have none
_PADDING = -2  # whose the rank of zeros behind all others is: no row takes it


@dataclass(frozen=True, slots=True)
class AdapterSpan:
    """Consecutive adapters, from `first` to before `last`: all that a pass reads the factors of."""

    first: int
    last: int


class _SideBySide:
    """The factors of one module: a [L, J + 1, inputs], b [L, J + 1, outputs], the last rank zeros.

    owners: the adapter of each rank. edges: where the ranks of each adapter begin, and where those of the last end.
    """

    def __init__(self, module: LoraModule, layers: int, adapters: Sequence[Adapter]) -> None:
        ranks = [adapter.rank(module.name) for adapter in adapters]
        self.edges = np.cumsum([0, *ranks]).tolist()
        self.owners = np.append(np.repeat(np.arange(len(adapters)), ranks), _PADDING)
        self.a = np.zeros((layers, len(self.owners), module.inputs), np.float32)
        self.b = np.zeros((layers, len(self.owners), module.outputs), np.float32)
        for adapter, start in zip(adapters, self.edges, strict=False):
            for (name, layer), factors in adapter.factors.items():
                if name == module.name:
                    self.a[layer, start : start + len(factors.a)] = factors.a
                    self.b[layer, start : start + len(factors.b)] = factors.b

    def ranks(self, span: AdapterSpan) -> slice:
        """Those of a span; the rank of zeros where it has none, so that no product is empty."""
        start, end = self.edges[span.first], self.edges[span.last]
        return slice(start, end) if end > start else slice(len(self.owners) - 1, len(self.owners))


class LoraRows:
    """Sole owner of the adapters' factors; knows the adapters of the rows of the pass at hand.

    A pass reads the factors from its first adapter to its last, which lie side by side: a lone adapter costs no more
    for the others there are, and none costs next to nothing. is_uniform: every pass reads all of them.
    """

    def __init__(self, manifest: Manifest, adapters: Sequence[Adapter], is_uniform: bool) -> None:
        self._modules = {
            module.name: (module, _SideBySide(module, manifest.model.layers, adapters)) for module in manifest.lora
        }
        self._numbers: Mapping[str, int] = {adapter.name: number for number, adapter in enumerate(adapters)}
        self._layers = manifest.model.layers
        self._of_row: NDArray[np.int64] = np.zeros(0, np.int64)
        self._everything = AdapterSpan(0, len(adapters)) if is_uniform else None
        self.span = AdapterSpan(0, 0)

    def start(self, batch: PackedBatch) -> None:
        """Take in which adapter each row of a pass has. KeyError for one that is not there."""
        if not self._numbers:
            return
        self._of_row = np.full(batch.shape.rows, NOBODY)
        for segment in batch.segments:
            if segment.adapter:
                self._of_row[segment.start : segment.end] = self._numbers[segment.adapter]
        taken = self._of_row[self._of_row >= 0]
        self.span = AdapterSpan(int(taken.min()), int(taken.max()) + 1) if len(taken) else AdapterSpan(0, 0)
        self.span = self._everything or self.span

    def masks(self, rows: int) -> Masks:
        """For the span of this pass, by module, [1, N, J] of zeros; modules of the same ranks share one."""
        shared: dict[bytes, Floats] = {}
        found: Masks = {}
        for name, (_, factors) in self._modules.items():
            owners = factors.owners[factors.ranks(self.span)]
            found[name] = shared.setdefault(owners.tobytes(), np.zeros((1, rows, len(owners)), np.float32))
        return found

    def fill(self, masks: Masks, chosen: NDArray[np.int64] | None = None) -> None:
        """Let each row take the ranks of its adapter. chosen: rows of the pass [M], None = all of them."""
        if self.span.first == self.span.last:  # zeros they are, and zeros they stay
            return
        of_row = self._of_row if chosen is None else self._of_row[chosen]
        filled: set[int] = set()
        for name, mask in masks.items():
            if id(mask) in filled:
                continue
            filled.add(id(mask))
            factors = self._modules[name][1]
            np.equal(of_row[:, None], factors.owners[factors.ranks(self.span)], out=mask[0, : len(of_row)])
            mask[0, len(of_row) :] = 0

    def inputs(self, part: int, masks: Masks) -> dict[str, Array]:
        """What the graph of a part takes, by the names of its tensors."""
        tensors: dict[str, Array] = {}
        for name, (module, factors) in self._modules.items():
            layer = part - 1 if module.starts_layer else part - 2
            if 0 <= layer < self._layers:
                ranks = factors.ranks(self.span)
                tensors |= {A + name: factors.a[layer, ranks], B + name: factors.b[layer, ranks]}
                tensors[MASK + name] = masks[name]
        return tensors
