"""The manifest of a model that is not there: graphs of its shapes and types, for a runtime that computes nothing."""

from collections.abc import Mapping

from engine.bundle.manifest import (
    FORMAT_VERSION,
    FileEntry,
    GraphKind,
    GraphSpec,
    Manifest,
    ModelSpec,
    RopeSpec,
    TensorSpec,
    TextSpec,
)
from engine.bundle.variant import PassShape
from engine.simulate.geometry import Geometry
from engine.simulate.prices import lay_out
from engine.simulate.published import Published

ROWS = (1, 32, 128)
# Codes that say 0 exactly and span what the tensors of w4a16 bundles do.
MASK = (0.0015, 65_535)
ROTARY = (1 / 32_768, 32_768)
LOGITS = (0.001, 32_768)
CACHE = (0.05, 128)


def paced_manifest(
    published: Published, geometry: Geometry, text: TextSpec, files: Mapping[str, FileEntry]
) -> Manifest:
    """As `hexserve compile --same-past` would describe the model: variants of 1, 32 and 128 rows over one past."""
    shapes = lay_out(tuple(rows for rows in ROWS if rows <= published.rows), published.context, same_context=False)
    half = geometry.head_dim // 2
    frequencies = tuple(geometry.rope_theta ** (-index / half) for index in range(half))
    return Manifest(
        format_version=FORMAT_VERSION,
        name=published.title.replace("/", "-") + "-paced",
        target="paced",
        quant="w4a16",
        split="lmhead",
        created=0,
        model=ModelSpec(
            family=geometry.family,
            layers=geometry.layers,
            hidden=geometry.hidden,
            heads=geometry.heads,
            kv_heads=geometry.kv_heads,
            head_dim=geometry.head_dim,
            ffn=geometry.ffn,
            vocab=geometry.vocab,
            rope=RopeSpec("default", geometry.rope_theta, geometry.head_dim, frequencies),
        ),
        graphs=(*(part for shape in shapes for part in _decoder(geometry, shape)), _head(geometry, max(shapes).rows)),
        kv_dtype="uint8",
        max_context=max(shape.past for shape in shapes) + 1,
        text=text,
        files=dict(files),
        versions={},
    )


def _decoder(geometry: Geometry, shape: PassShape) -> list[GraphSpec]:
    """The parts of a shape, cut as the bundle is whose times are published."""
    size = geometry.part_layers or geometry.layers
    firsts = range(0, geometry.layers, size)
    return [
        _part(geometry, shape, number, len(firsts), range(first, min(first + size, geometry.layers)))
        for number, first in enumerate(firsts, 1)
    ]


def _part(geometry: Geometry, shape: PassShape, number: int, count: int, layers: range) -> GraphSpec:
    rows, past, context = shape.rows, shape.past, shape.context
    heads, size = geometry.kv_heads, geometry.head_dim
    first = TensorSpec("input_ids", "int32", (1, rows)) if number == 1 else _hidden(geometry, rows, number - 1)
    inputs = [
        first,
        TensorSpec("attention_mask", "uint16", (1, 1, rows, context), *MASK),
        TensorSpec("position_ids_cos", "uint16", (1, 1, rows, size // 2), *ROTARY),
        TensorSpec("position_ids_sin", "uint16", (1, 1, rows, size // 2), *ROTARY),
    ]
    outputs = []
    for layer in layers:
        inputs.append(TensorSpec(f"past_key_{layer}_in", "uint8", (heads, 1, size, past), *CACHE))
        inputs.append(TensorSpec(f"past_value_{layer}_in", "uint8", (heads, 1, past, size), *CACHE))
        outputs.append(TensorSpec(f"past_key_{layer}_out", "uint8", (heads, 1, size, rows), *CACHE))
        outputs.append(TensorSpec(f"past_value_{layer}_out", "uint8", (heads, 1, rows, size), *CACHE))
    outputs.append(_hidden(geometry, rows, number))
    name = f"ar{rows}_cl{context}_{number}_of_{count}"
    ends = layers[0], layers[-1]
    return GraphSpec(
        name, "none", GraphKind.DECODER, number, count, tuple(inputs), tuple(outputs), rows, context, *ends
    )


def _hidden(geometry: Geometry, rows: int, part: int) -> TensorSpec:
    return TensorSpec(f"hidden_{part}", "uint16", (1, rows, geometry.hidden), *ROTARY)


def _head(geometry: Geometry, rows: int) -> GraphSpec:
    hidden = _hidden(geometry, rows, -(-geometry.layers // (geometry.part_layers or geometry.layers)))
    logits = TensorSpec("logits", "uint16", (1, rows, geometry.vocab), *LOGITS)
    return GraphSpec("lmhead", "none", GraphKind.LMHEAD, 1, 1, (hidden,), (logits,), rows)
