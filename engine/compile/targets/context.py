"""`python -m engine.compile.targets.context JOB`: context binaries from ONNX files, in a process of its own.

Its memory is gone when it ends, and a crash inside the libraries costs one job. JOB is a `ContextJob` as JSON.
"""

import sys
from pathlib import Path

import msgspec

from engine.errors import BundleError
from engine.runtime.onnx_library import ort
from engine.runtime.qnn.provider import SHARE, STOP_SHARING, HtpTarget, compile_options, open_session

FAILED = 4


class ContextJob(msgspec.Struct, frozen=True):
    """Graphs that go into one binary. sources: ONNX files; wrappers: the EPContext file to make for each of them.
    block_integers: multiply 4-bit blocks as integers; without it they would go through half precision."""

    sources: tuple[str, ...]
    wrappers: tuple[str, ...]
    soc_model: int
    htp_arch: int
    block_integers: bool = False


def main(argv: list[str]) -> int:
    """Run one job; 4 after the reason on stderr when a graph cannot be compiled."""
    job = msgspec.json.decode(argv[0], type=ContextJob)
    try:
        make_binary(job)
    except (BundleError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return FAILED
    return 0


def make_binary(job: ContextJob) -> None:
    """Compile the graphs of a job; all sessions live until the last one is made, for that one writes the binary."""
    options = compile_options(HtpTarget(job.soc_model, job.htp_arch))
    if job.block_integers:
        options["enable_block_quant_weight_optimization"] = "1"
    shared = len(job.sources) > 1
    if shared:
        options["enable_htp_weight_sharing"] = "1"
    sessions: list[ort.InferenceSession] = []
    for source, wrapper in zip(job.sources, job.wrappers, strict=True):
        config = {"ep.context_enable": "1", "ep.context_embed_mode": "0", "ep.context_file_path": wrapper}
        if shared:
            is_last = len(sessions) == len(job.sources) - 1
            config |= {SHARE: "1", STOP_SHARING: "1"} if is_last else {SHARE: "1"}
        try:
            sessions.append(open_session(Path(source), options, config))
        except BundleError:
            raise
        except Exception as error:  # onnxruntime's exceptions share no base class of their own
            raise RuntimeError(f"{Path(source).stem}: {error}") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
