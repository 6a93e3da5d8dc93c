"""`python -m engine.compile SOURCE -o DIR`: argument parsing only."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from engine.compile.arguments import BLOCKS, DEFAULT_PART_MB, EMBEDDING_BITS, CompileArguments, Quant, Split, Target
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import RichProgress
from engine.demo.location import demo_folder
from engine.errors import BundleError, CompileError
from engine.sources.resolve import DEMO

PARITY, DEMO_PARITY = 48, 800  # tokens of the final check: the demo model is small enough for a real one


def main(argv: Sequence[str] | None = None) -> int:
    """Compile as the command line says; 0, or 1 after one line on stderr."""
    arguments = parse(sys.argv[1:] if argv is None else argv)
    try:
        with RichProgress(Console(stderr=True)) as progress:
            compile_bundle(arguments, progress)
    except (CompileError, BundleError) as error:  # the latter: what QNN's variables name cannot be used
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; nothing was written", file=sys.stderr)
        return 130
    return 0


def parse(argv: Sequence[str]) -> CompileArguments:
    """The command line as CompileArguments."""
    parser = argparse.ArgumentParser(
        prog="hexserve compile", description="Compile a Hugging Face folder into a bundle."
    )
    parser.add_argument("source", help="folder with config.json, safetensors and tokenizer.json, or 'demo'")
    parser.add_argument("-o", "--output", type=Path, required=True, help="bundle folder to make")
    parser.add_argument("--target", type=Target, choices=list(Target), default=Target.CPU)
    parser.add_argument("--quant", type=Quant, choices=list(Quant), help="cpu: int4 unless said; NPU: w4")
    parser.add_argument("--split", type=Split, choices=list(Split), default=Split.LMHEAD)
    parser.add_argument("--block", type=int, choices=BLOCKS, default=32, help="int4: inputs that share a scale")
    parser.add_argument("--asymmetric", action="store_true", help="int4: a zero point for each block")
    parser.add_argument("--embedding", type=int, choices=EMBEDDING_BITS, default=0, help="bits of the table")
    parser.add_argument("--head", type=Quant, choices=list(Quant), help="how the LM head is stored (as --quant)")
    parser.add_argument("--rows", type=_numbers, default=(), help="fixed variants: rows, such as 1,8,32,128")
    parser.add_argument("--context", type=_numbers, default=(), help="fixed variants: key axis widths, 256,1024")
    parser.add_argument("--same-past", type=_numbers, default=(), help="instead of --context: past columns")
    parser.add_argument("--max-context", type=int, default=0, help="most tokens of one sequence")
    parser.add_argument("--parity-tokens", type=int, default=0, help="length of the final check")
    parser.add_argument("--name", default="", help="name of the model (the source folder's)")
    binaries = parser.add_mutually_exclusive_group()
    binaries.add_argument("--share-weights", action="store_true", help="NPU: one binary for all variants (default)")
    binaries.add_argument(
        "--one-graph-per-binary", action="store_true", help="NPU: a binary for each variant, as the emulator needs"
    )
    parser.add_argument(
        "--part-mb", type=int, default=DEFAULT_PART_MB, help="NPU: cut the layers into binaries of at most so much"
    )
    parser.add_argument("--calibration", type=Path, help="w8a16, w4a16: text file to observe activations on")
    parser.add_argument("--force", action="store_true", help="replace an existing bundle")
    options = parser.parse_args(argv)
    return CompileArguments(
        source=demo_folder() if options.source == DEMO else Path(options.source).expanduser(),
        output=options.output,
        target=options.target,
        quant=options.quant or (Quant.INT4 if options.target is Target.CPU else Quant.W4),
        split=options.split,
        block=options.block,
        asymmetric=options.asymmetric,
        embedding_bits=options.embedding,
        head=options.head,
        rows=options.rows,
        context=options.context,
        same_past=options.same_past,
        max_context=options.max_context,
        parity_tokens=options.parity_tokens or (DEMO_PARITY if options.source == DEMO else PARITY),
        force=options.force,
        share_weights=not options.one_graph_per_binary,
        part_mb=options.part_mb,
        calibration=options.calibration,
        name=options.name or (DEMO if options.source == DEMO else ""),
    )


def _numbers(text: str) -> tuple[int, ...]:
    """'1,8,32' as a sorted tuple without repeats."""
    try:
        return tuple(sorted({int(part) for part in text.split(",") if part.strip()}))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 1,8,32") from None


if __name__ == "__main__":
    sys.exit(main())
