"""One decode step enters few modules of the engine: whoever reads it reads these."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from engine.config import EngineConfig
from engine.request import Request, SamplingParams
from engine.worker.assembly import assemble

ENGINE = Path(__file__).parents[3] / "engine"
PROMPT = tuple(range(1, 20))
MOST = 25


def entered_modules(work: Callable[[], object]) -> tuple[str, ...]:
    """The modules of engine/ of which a function runs in this thread during `work`, sorted."""
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            files.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    inside = (Path(file) for file in files if file.startswith(f"{ENGINE}/"))
    return tuple(sorted(path.relative_to(ENGINE).as_posix() for path in inside))


def test_a_decode_step_enters_few_modules(segmented_bundle: Path) -> None:
    """Of a lone sequence; how many steps its prompt takes depends on how fast they are."""
    made = assemble(EngineConfig(bundle=str(segmented_bundle)))
    try:
        made.loop.add(Request("a", PROMPT, SamplingParams(max_tokens=8)), (), 0, 0.0)
        any(made.loop.step().events for _ in PROMPT)
        made.loop.step()  # the first decode binds its place
        modules = entered_modules(made.loop.step)
    finally:
        made.loop.close()
        made.runtime.close()
    assert {"worker/step.py", "core/scheduler.py", "runtime/segmented.py", "sampling/sampler.py"} <= set(modules)
    assert len(modules) <= MOST, modules


def test_only_what_runs_is_counted() -> None:
    assert entered_modules(lambda: sum((1, 2))) == ()
