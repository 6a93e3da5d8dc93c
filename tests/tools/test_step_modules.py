"""One decode step enters few modules of the engine: whoever reads it reads these."""

from pathlib import Path

from tools.step_modules import decode_modules, entered_modules

MOST = 25


def test_a_decode_step_enters_few_modules(segmented_bundle: Path) -> None:
    modules = decode_modules(segmented_bundle)
    assert {"worker/step.py", "core/scheduler.py", "runtime/segmented.py", "sampling/sampler.py"} <= set(modules)
    assert len(modules) <= MOST, modules


def test_only_what_runs_is_counted() -> None:
    assert entered_modules(lambda: sum((1, 2))) == ()
