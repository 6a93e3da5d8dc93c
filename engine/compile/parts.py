"""The vertical cut of the network into parts, each with its own data file and graphs."""

from dataclasses import dataclass

from engine.bundle.manifest import GraphKind
from engine.compile.arguments import Split

EMBEDDED = "embedded"
HIDDEN = "hidden_states"


@dataclass(frozen=True, slots=True)
class PartPlan:
    """One part; `number` counts from 1.

    `source` and `result` name what it takes and gives besides mask, rotation and caches.
    """

    number: int
    count: int
    kind: GraphKind
    has_table: bool
    layers: range
    has_head: bool
    source: str
    result: str

    @property
    def data_file(self) -> str:
        """The external data of all its graphs."""
        return f"part_{self.number}_of_{self.count}.data"


def plan_parts(split: Split, layers: int) -> tuple[PartPlan, ...]:
    """Parts in the order they run; a part's `source` is the `result` of the one before."""
    every, none = range(layers), range(0)
    if split is Split.NONE:
        return (PartPlan(1, 1, GraphKind.DEFAULT, True, every, True, "input_ids", "logits"),)
    if split is Split.LMHEAD:
        return (
            PartPlan(1, 2, GraphKind.DECODER, True, every, False, "input_ids", HIDDEN),
            PartPlan(2, 2, GraphKind.LMHEAD, False, none, True, HIDDEN, "logits"),
        )
    return (
        PartPlan(1, 3, GraphKind.LUT, True, none, False, "input_ids", EMBEDDED),
        PartPlan(2, 3, GraphKind.DECODER, False, every, False, EMBEDDED, HIDDEN),
        PartPlan(3, 3, GraphKind.LMHEAD, False, none, True, HIDDEN, "logits"),
    )
