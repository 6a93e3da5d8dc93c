"""The fake runtime under the rules of fused graphs: every step is placed as the real one places it."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from engine.bundle.fused import shape_for
from engine.bundle.specs import SPARE_SLOTS
from engine.runtime.fused import Placement, place
from engine.runtime.interface import PackedBatch
from tests.engine.worker.segmented_runtime import SegmentedFake


class FusedFake(SegmentedFake):
    """placements: what each step came to. A step that no fused graph can run fails."""

    placements: list[Placement]

    def seen(self, batch: PackedBatch) -> Callable[[int], NDArray[np.int64]]:
        """Place the step, then read as sequences with caches of their own do."""
        shape = shape_for(batch.shape.rows, self.shapes.slots)
        placed = place(batch, shape, self.shapes.max_past - SPARE_SLOTS)
        placed.logit_index(batch.logit_rows)
        self.placements = [*getattr(self, "placements", []), placed]
        return super().seen(batch)
