"""What a folder tells of itself beside its graphs: a sample prompt to try it with, and tensors to compare."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from engine.bundle.manifest import TextSpec
from engine.bundle.specs import SampleSpec
from engine.files import TEMPLATE_BYTES, confined, is_regular, read_text
from engine.genie.config import Fields
from engine.genie.text import TOKENIZER_FILE, read_metadata
from engine.runtime.qnn.binary import BinaryInfo, BinaryTensor
from engine.text.tokenizer import Tokenizer

SAMPLE_TOKENS = 24  # enough to tell sense from noise, few enough for a start
SAMPLE_FILE = "sample_prompt.txt"
TEXT_INPUT = "TEXT_INPUT"  # how the name of a pipeline's input of text ends
NEAR = 1e-4  # of a scale: metadata rounds


def sample_ids(folder: Path, text: TextSpec) -> tuple[int, ...]:
    """The first tokens of the folder's sample prompt, () where it has none that can be read."""
    for name in _sample_files(read_metadata(folder)):
        try:
            path = confined(folder, name)
            if not is_regular(path) or not is_regular(folder / TOKENIZER_FILE):
                continue
            prompt = read_text(path, TEMPLATE_BYTES)
        except (OSError, UnicodeError):
            continue
        return Tokenizer.load(folder, text).encode(prompt, allow_special=True)[:SAMPLE_TOKENS]
    return ()


def _sample_files(metadata: Fields) -> Iterator[str]:
    listed = metadata.group("genie").values.get("sample_inputs")
    for item in listed if isinstance(listed, list) else ():
        if isinstance(item, Mapping) and str(item.get("node_io")).endswith(TEXT_INPUT) and item.get("file"):
            yield str(item["file"])
    yield SAMPLE_FILE


def sample_of(folder: Path, text: TextSpec, infos: Mapping[str, BinaryInfo], vocabulary: int) -> SampleSpec | None:
    """What to try the folder with, and a sentence where metadata.json says otherwise of tensors than the binaries."""
    found = list(contradictions(read_metadata(folder), infos))
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    problems = (f"metadata.json does not fit its binaries: {found[0]}{more}",) if found else ()
    sample = SampleSpec(tuple(token for token in sample_ids(folder, text) if token < vocabulary), problems=problems)
    return sample if sample != SampleSpec() else None


def contradictions(metadata: Fields, infos: Mapping[str, BinaryInfo]) -> Iterator[str]:
    """Sentences. Entries are named for a graph, or for a binary with one graph; others are passed over."""
    graphs = {graph.name: graph for info in infos.values() for graph in info.graphs}
    graphs |= {name: info.graphs[0] for name, info in infos.items() if len(info.graphs) == 1}
    files = metadata.group("model_files")
    for name in files.values:
        graph = graphs.get(name)
        if graph is None:
            continue
        real = {tensor.name: tensor for tensor in (*graph.inputs, *graph.outputs)}
        for side in ("inputs", "outputs"):
            tensors = files.group(name).group(side)
            for told in tensors.values:
                tensor = real.get(re.sub(r"[/.]", "_", told))
                if tensor is not None and (said := _said_otherwise(tensors.group(told), tensor)):
                    yield f"tensor {told} of {name} {said}"


def _said_otherwise(told: Fields, real: BinaryTensor) -> str:
    shape = told.values.get("shape")
    if isinstance(shape, list) and [size for size in shape if size != 1] != [size for size in real.shape if size != 1]:
        return f"is said to be {shape}, it is {list(real.shape)}"
    parameters = told.group("quantization_parameters").values
    scale, zero = parameters.get("scale"), parameters.get("zero_point")
    if real.encoding is None or len(real.encoding.scales) != 1 or not isinstance(scale, int | float):
        return ""
    if abs(scale - real.encoding.scales[0]) > NEAR * real.encoding.scales[0] or zero != -real.encoding.offsets[0]:
        own = f"{real.encoding.scales[0]:.6g} and {-real.encoding.offsets[0]}"
        return f"is said to have the scale {scale:.6g} and the zero point {zero}, it has {own}"
    return ""
