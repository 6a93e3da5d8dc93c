"""The fixed settings of a scheduler."""

from dataclasses import dataclass

from engine.scheduling.admission import Capacity


@dataclass(frozen=True, slots=True)
class Rules:
    """How the scheduler behaves; see `EngineConfig` for the meaning of each. `build.py` makes it of a configuration.

    offload_pages: pages that the host KV cache may hold, 0 = there is none.
    is_recurrent: whether sequences carry a state that is only there where they are; state_snapshots: how many copies of
    states there may be. pooled_rows: `embed_rows`.
    """

    capacity: Capacity
    max_running: int
    max_gap_ms: float
    prefix_cache: bool
    lookup_rows: int
    prediction_rows: int
    offload_pages: int
    reserve_tokens: int
    is_recurrent: bool
    state_snapshots: int
    pooled_rows: int
