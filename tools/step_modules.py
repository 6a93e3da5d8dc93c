"""Which modules of engine/ one decode step enters on a CPU: `python -m tools.step_modules [BUNDLE]`."""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from engine.compile.arguments import CompileArguments, Layout
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.config import EngineConfig
from engine.request import Request, SamplingParams
from engine.worker.assembly import assemble
from tools.random_checkpoint import SHAPES, write_checkpoint

ENGINE = Path(__file__).parent.parent / "engine"
PROMPT = tuple(range(1, 20))


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


def decode_modules(bundle: Path) -> tuple[str, ...]:
    """Of one step of a lone sequence that decodes, its prompt computed by steps before."""
    made = assemble(EngineConfig(bundle=str(bundle)))
    try:
        made.loop.add(Request("a", PROMPT, SamplingParams(max_tokens=8)), (), 0, 0.0)
        # How many steps the prompt takes depends on how fast they are; the first decode binds its place.
        any(made.loop.step().events for _ in PROMPT)
        made.loop.step()
        return entered_modules(made.loop.step)
    finally:
        made.loop.close()
        made.runtime.close()


def main() -> None:
    """Print the modules and how many they are; without a bundle, of a tiny random model in the default layout."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", nargs="?", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bundle = options.bundle
        if bundle is None:
            source, bundle = Path(folder) / "source", Path(folder) / "bundle"
            write_checkpoint(source, SHAPES["tiny"])
            compile_bundle(CompileArguments(source, bundle, layout=Layout.SEGMENTS), SilentProgress())
        modules = decode_modules(bundle)
    print(*modules, f"{len(modules)} modules", sep="\n")


if __name__ == "__main__":
    main()
