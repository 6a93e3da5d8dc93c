"""The events of GET /v1/passes."""

from collections.abc import Sequence
from typing import Any

import msgspec

from engine.messages import PassRecord, Stats


def beginning(stats: Stats) -> dict[str, Any]:
    """An event without passes: the gauges of now, for a watcher who comes while nothing runs."""
    gauges = ("running", "waiting", "columns_used", "columns_total")
    return {"type": "passes", "dropped": 0, "passes": [], **{name: getattr(stats, name) for name in gauges}}


def passes_event(records: Sequence[PassRecord], dropped: int) -> dict[str, Any]:
    """The passes since the last event, of which `dropped` before these were not kept; gauges are of the last one."""
    last = records[-1]
    return {
        "type": "passes",
        "dropped": dropped,
        "passes": [_pass(record) for record in records],
        "running": last.running,
        "waiting": last.waiting,
        "columns_used": last.columns_used,
        "columns_total": last.columns_total,
    }


def _pass(record: PassRecord) -> dict[str, Any]:
    return {
        "number": record.number,
        "began_ms": record.began_ms,
        "run_ms": record.run_ms,
        "step_ms": record.step_ms,
        "pool": record.pool,
        "rows": record.rows,
        "columns": record.columns,
        "running": record.running,
        "waiting": record.waiting,
        "columns_used": record.columns_used,
        "segments": [msgspec.structs.asdict(segment) for segment in record.segments],
    }
