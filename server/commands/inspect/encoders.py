"""What there is to tell of an encoder's bundle."""

from engine.bundle.encoder import POSITIONS, encoder_rows
from engine.bundle.encoder_spec import EncoderSpec
from engine.bundle.manifest import Manifest
from engine.bundle.pooling import PoolingKind, PoolingSpec, RerankSpec

_ROWS = {PoolingKind.MEAN: "the mean of its rows", PoolingKind.CLS: "its first row", PoolingKind.LAST: "its last row"}


def encoder_facts(manifest: Manifest, spec: EncoderSpec) -> list[tuple[str, str]]:
    """Heading and text of each row."""
    rope, passes = manifest.model.rope, ", ".join(map(str, encoder_rows(manifest)))
    has_table = any(tensor.name == POSITIONS for graph in manifest.graphs for tensor in graph.inputs)
    positions = f"a table, from {spec.position_offset} on" if has_table else f"rotary, theta {rope.theta:g}"
    return [
        ("positions", f"{positions}; token types: {spec.token_types}"),
        ("weights", manifest.quant),
        ("texts", f"{manifest.max_context:,} tokens at most; passes of {passes} rows hold several"),
        *_made_of_a_text(manifest),
    ]


def _made_of_a_text(manifest: Manifest) -> list[tuple[str, str]]:
    if manifest.pooling is not None:
        return _vector_rows(manifest.pooling)
    return _pair_rows(manifest.rerank) if manifest.rerank is not None else []


def _vector_rows(spec: PoolingSpec) -> list[tuple[str, str]]:
    length = "of length 1" if spec.normalise else "of any length"
    prompts = ", ".join(f"{name} {prompt!r}" for name, prompt in spec.prompts.items())
    return [
        ("vectors", f"{spec.dimensions} numbers, {length}: {_ROWS[spec.kind]}"),
        ("around a text", f"{_ids(spec.begin_ids)} ... {_ids(spec.end_ids)}"),
        ("prompts", f"{prompts or 'none'}; unless asked for: {spec.default_prompt or 'none'}"),
    ]


def _pair_rows(spec: RerankSpec) -> list[tuple[str, str]]:
    around = " ".join((_ids(spec.begin_ids), "query", _ids(spec.middle_ids), "document", _ids(spec.end_ids)))
    return [("scores", f"of pairs: {around}")]


def _ids(ids: tuple[int, ...]) -> str:
    return ",".join(map(str, ids)) or "-"
