"""`python -m tools.yarn_gguf FILE --factor 4 -o OUT`: a GGUF file with YaRN as its model's card says to write it.

The facts of a rotation that is stretched by the factor, from the original context on; tensors are those of the file.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import gguf

OURS = ("rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length", "context_length")


def write_yarn(source: Path, target: Path, factor: float, original: int = 0) -> None:
    """original: tokens, 0 = the file's context. The new file's context is the factor times as long."""
    reader = gguf.GGUFReader(source)
    architecture = _text(reader, "general.architecture")
    original = original or int(reader.fields[f"{architecture}.context_length"].contents())
    writer = gguf.GGUFWriter(target, architecture)
    told = {f"{architecture}.{name}" for name in OURS}
    for name, found in reader.fields.items():
        if name not in told and not name.startswith("GGUF.") and name != "general.architecture":
            sub_type = found.types[1] if found.types[0] is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, found.contents(), found.types[0], sub_type)
    writer.add_context_length(round(original * factor))
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(factor)
    writer.add_rope_scaling_orig_ctx_len(original)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _text(reader: gguf.GGUFReader, name: str) -> str:
    return str(reader.fields[name].contents())


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
