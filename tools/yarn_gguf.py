"""`python -m tools.yarn_gguf FILE --factor 4 -o OUT`: a GGUF file with YaRN as its model's card says to write it.

The facts of a rotation that is stretched by the factor, from the original context on; tensors are those of the file.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import gguf
from gguf.scripts.gguf_new_metadata import MetadataDetails, copy_with_new_metadata


def write_yarn(source: Path, target: Path, factor: float, original: int = 0) -> None:
    """original: tokens, 0 = the file's context. The new file's context is the factor times as long."""
    reader = gguf.GGUFReader(source)
    architecture = str(reader.fields["general.architecture"].contents())
    original = original or int(reader.fields[f"{architecture}.context_length"].contents())
    uint32, float32, text = gguf.GGUFValueType.UINT32, gguf.GGUFValueType.FLOAT32, gguf.GGUFValueType.STRING
    told = {
        "context_length": MetadataDetails(uint32, round(original * factor)),
        "rope.scaling.type": MetadataDetails(text, "yarn"),
        "rope.scaling.factor": MetadataDetails(float32, factor),
        "rope.scaling.original_context_length": MetadataDetails(uint32, original),
    }
    named = {f"{architecture}.{name}": value for name, value in told.items()}
    copy_with_new_metadata(reader, gguf.GGUFWriter(target, architecture), named, ())


def main(argv: Sequence[str] | None = None) -> int:
    """Parse the command line and write the file."""
    parser = argparse.ArgumentParser(prog="python -m tools.yarn_gguf", description="Write YaRN into a GGUF file.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--factor", type=float, default=4.0)
    parser.add_argument("--original", type=int, default=0, help="tokens; the file's context when left out")
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args(argv)
    write_yarn(options.file, options.output, options.factor, options.original)
    return 0


if __name__ == "__main__":
    sys.exit(main())
