"""`python -m tools.step_modules BUNDLE`: the modules of engine/ that one decode step of a lone sequence enters."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from engine.config import EngineConfig
from engine.request import Request, SamplingParams
from engine.worker.assembly import assemble

PROMPT = tuple(range(1, 20))


def decode_modules(bundle: Path) -> tuple[str, ...]:
    """Sorted; BundleError. How many steps the prompt takes depends on how fast they are."""
    made = assemble(EngineConfig(bundle=str(bundle)))
    try:
        made.loop.add(Request("a", PROMPT, SamplingParams(max_tokens=8)), (), 0, 0.0)
        any(made.loop.step().events for _ in PROMPT)
        made.loop.step()  # the first decode binds its place
        return entered_modules(made.loop.step)
    finally:
        made.loop.close()
        made.runtime.close()


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
    root = Path(__file__).parents[1] / "engine"
    return tuple(sorted(Path(file).relative_to(root).as_posix() for file in files if file.startswith(f"{root}/")))


if __name__ == "__main__":
    print(*decode_modules(Path(sys.argv[1])), sep="\n")
