"""The graphs of an encoder's bundle: their tensors, and the numbers of rows a pass may have.

Legend: N = rows; each row may see each other, as the mask says.
"""

from engine.bundle.encoder_spec import EncoderSpec
from engine.bundle.float_file import check_floats
from engine.bundle.forms import Form, check_form
from engine.bundle.manifest import GraphKind, GraphSpec, Manifest
from engine.bundle.pooling import RerankKind
from engine.bundle.task import ModelTask
from engine.errors import BundleError

IDS, TYPES, POSITIONS, MASK = "input_ids", "token_type_ids", "position_ids", "attention_mask"
COS, SIN, HIDDEN = "position_ids_cos", "position_ids_sin", "hidden_states"
SCORE_HEAD = "score_head.bin"
MOST_ROWS = 8192


def encoder_of(manifest: Manifest) -> EncoderSpec:
    """What makes the bundle an encoder's; BundleError where it is none."""
    if manifest.encoder is None:
        raise BundleError(f"{manifest.name} is no encoder")
    return manifest.encoder


def encoder_rows(manifest: Manifest) -> tuple[int, ...]:
    """Rows that passes may have, fewest first."""
    return tuple(sorted(graph.rows for graph in manifest.graphs if graph.rows is not None))


def score_head_floats(hidden: int) -> int:
    """Numbers of a head's file: a layer [hidden, hidden] with bias, then one [1, hidden] with bias."""
    return (hidden + 1) * (hidden + 1)


def check_encoder(manifest: Manifest) -> None:
    """BundleError unless every graph takes and gives what an encoder's does, and the longest text fits one."""
    spec = encoder_of(manifest)
    rows = encoder_rows(manifest)
    if len(set(rows)) != len(rows) or not rows:
        raise BundleError("an encoder has one graph for each number of rows, and at least one")
    if rows[-1] > MOST_ROWS:
        raise BundleError(f"an encoder's graph has {rows[-1]} rows, {MOST_ROWS} is the most: each sees all of them")
    if manifest.max_context > rows[-1]:
        raise BundleError(f"a text may have {manifest.max_context} tokens, the largest graph has {rows[-1]} rows")
    for graph in manifest.graphs:
        _check_graph(manifest, graph)
    _check_task(manifest, spec)
    if spec.score_head:
        shape = (score_head_floats(manifest.model.hidden),)
        check_floats(manifest, spec.score_head, shape, f"a head over {manifest.model.hidden} numbers takes")


def _check_task(manifest: Manifest, spec: EncoderSpec) -> None:
    match manifest.task:
        case ModelTask.EMBED:
            if manifest.pooling is None or manifest.pooling.dimensions != manifest.model.hidden:
                raise BundleError(f"an encoder for embeddings makes vectors of {manifest.model.hidden} numbers")
        case ModelTask.RERANK:
            if manifest.rerank is None or manifest.rerank.kind is not RerankKind.PAIR or not spec.score_head:
                raise BundleError("an encoder that scores documents reads pairs and has a score head")
        case ModelTask.GENERATE:
            raise BundleError("an encoder generates nothing: its task is embed or rerank")


def _check_graph(manifest: Manifest, graph: GraphSpec) -> None:
    if graph.kind is not GraphKind.ENCODER or graph.rows is None:
        raise BundleError(f"graph {graph.name} is no encoder of a fixed number of rows")
    known = _forms(manifest, graph.rows)
    given = {tensor.name for tensor in graph.inputs}
    for tensor in graph.inputs:
        if tensor.name not in known or tensor.name == HIDDEN:
            raise BundleError(f"graph {graph.name} has the input {tensor.name}, which nothing provides")
        check_form(graph, "input", tensor, known[tensor.name])
    if not {IDS, TYPES, MASK} <= given or not ({COS, SIN} <= given or POSITIONS in given):
        raise BundleError(f"graph {graph.name} lacks an input: it has {', '.join(sorted(given)) or 'none'}")
    if [tensor.name for tensor in graph.outputs] != [HIDDEN]:
        raise BundleError(f"graph {graph.name} must give {HIDDEN} and nothing else")
    check_form(graph, "output", graph.outputs[0], known[HIDDEN])


def _forms(manifest: Manifest, rows: int) -> dict[str, Form]:
    half = manifest.model.rope.rotary_dim // 2
    ids: Form = ("int32", (rows,))
    return {
        IDS: ids,
        TYPES: ids,
        POSITIONS: ids,
        MASK: ("", (rows, rows)),
        COS: ("", (rows, half)),
        SIN: ("", (rows, half)),
        HIDDEN: ("", (rows, manifest.model.hidden)),
    }
