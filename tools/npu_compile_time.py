"""`python -m tools.npu_compile_time`: seconds and memory to compile a 0.6B-shaped checkpoint for X Elite.

Compiles random weights (w4, AR-1 and AR-32, one context, one graph per binary) and prints seconds and the largest
sum of resident memory over the compiler's processes.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from engine.compile.arguments import CompileArguments, Quant, Target
from engine.compile.console import encode_arguments
from engine.processes import child_environment, module_command
from tools.peers.memory import MemoryWatch
from tools.random_checkpoint import SHAPES, write_checkpoint

SECONDS_BAR, GIGABYTES_BAR = 150.0, 9.0


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures; 1 when the compilation failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--source", type=Path, help="checkpoint folder to use instead of random weights")
    parser.add_argument("--target", choices=list(Target), default="x-elite")
    parser.add_argument("--quant", choices=list(Quant), default="w4")
    parser.add_argument("--rows", default="1,32")
    parser.add_argument("--context", default="1024")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="hexserve-bench-") as name:
        source = options.source or Path(name) / "checkpoint"
        if options.source is None:
            write_checkpoint(source, SHAPES[options.shape])
        arguments = CompileArguments(
            source,
            Path(name) / "bundle",
            Target(options.target),
            Quant(options.quant),
            rows=_numbers(options.rows),
            context=_numbers(options.context),
            share_weights=False,
        )
        seconds, peak, code = measure(module_command("engine.compile", encode_arguments(arguments)))
        size = sum(path.stat().st_size for path in Path(name).glob("bundle/*")) if code == 0 else 0
        shutil.rmtree(f"{name}/bundle", ignore_errors=True)
    print(
        f"{options.shape} {options.quant} rows {options.rows} context {options.context} for {options.target}: "
        f"{seconds:.0f} s (bar {SECONDS_BAR:.0f}), peak {peak / 1e9:.1f} GB (bar {GIGABYTES_BAR:.0f} GB), "
        f"bundle {size / 1e9:.2f} GB"
    )
    return int(code != 0)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def measure(command: Sequence[str]) -> tuple[float, int, int]:
    """Run a command: wall seconds, the largest resident bytes of its process tree, exit code."""
    start = time.perf_counter()
    process = subprocess.Popen(command, env=child_environment())
    with MemoryWatch((process.pid,)) as watch:
        code = process.wait()
    return time.perf_counter() - start, watch.peaks[process.pid].rss, code


if __name__ == "__main__":
    sys.exit(main())
