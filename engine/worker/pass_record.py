"""What a pass was, for those who watch: shapes and numbers, no token and no id."""

from engine.messages import PassRecord, PassSegment
from engine.scheduling.plan import SequenceUpdate, StepPlan
from engine.scheduling.scheduler import Scheduler


def pass_record(
    plan: StepPlan,
    updates: list[SequenceUpdate],
    scheduler: Scheduler,
    number: int,
    began_ms: float,
    run_ms: float,
    step_ms: float,
) -> PassRecord:
    """The record of a pass that has been committed; a sequence that it lost is left out."""
    pools = scheduler.pools
    return PassRecord(
        number,
        round(began_ms, 3),
        round(run_ms, 3),
        round(step_ms, 3),
        plan.pool,
        plan.shape.rows,
        plan.shape.context,
        tuple(map(_segment, updates)),
        running=scheduler.running,
        waiting=scheduler.waiting,
        columns_used=sum(pool.referenced * pool.page_columns for pool in pools),
        columns_total=sum(pool.page_count * pool.page_columns for pool in pools),
    )


def _segment(update: SequenceUpdate) -> PassSegment:
    segment = update.segment
    kind = "denoise" if segment.masked else "decode" if segment.is_decode else "prefill"
    guesses = len(segment.guesses) if kind == "decode" else 0
    return PassSegment(
        update.sequence.order, kind, len(segment.tokens), guesses, update.accepted, len(update.new_tokens)
    )
