"""The graphs of an encoder's bundle: their tensors, and the numbers of rows a step may have. Legend: N = rows; each row
may see each other, as the mask says."""

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest
from engine.bundle.specs import EncoderSpec, ModelTask, RerankKind
from engine.bundle.tensors import COS, IDS, MASK, SIN, Form, check_form, row_forms
from engine.bundle.weight_files import check_floats
from engine.errors import BundleError

TYPES, POSITIONS, HIDDEN = "token_type_ids", "position_ids", "hidden_states"
SCORE_HEAD, PROJECTION = "score_head.bin", "projection.bin"
MOST_ROWS = 8192


def encoder_of(manifest: Manifest) -> EncoderSpec:
    """What makes the bundle an encoder's; BundleError where it is none."""
    if manifest.encoder is None:
        raise BundleError(f"{manifest.name} is no encoder")
    return manifest.encoder


def encoder_rows(manifest: Manifest) -> tuple[int, ...]:
    """Rows that steps may have, fewest first."""
    return tuple(sorted(graph.rows for graph in manifest.graphs if graph.rows is not None))


def pair_types(ids: tuple[int, ...], middle: tuple[int, ...]) -> tuple[int, ...]:
    """Token types of a pair: 0 up to the tokens between its texts and including them, 1 behind; () of one text."""
    for start in range(len(ids) - len(middle) + 1):
        if ids[start : start + len(middle)] == middle:
            first = start + len(middle)
            return (0,) * first + (1,) * (len(ids) - first)
    return ()


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
    match manifest.task:
        case ModelTask.EMBED:
            outputs, hidden = manifest.pooling.dimensions if manifest.pooling else 0, manifest.model.hidden
            if spec.projection:
                check_floats(manifest, spec.projection, (outputs, hidden + 1), f"{outputs} numbers of a vector take")
            elif outputs != hidden:
                raise BundleError(f"an encoder for embeddings makes vectors of {manifest.model.hidden} numbers")
        case ModelTask.RERANK:
            if manifest.rerank is None or manifest.rerank.kind is not RerankKind.PAIR or not spec.score_head:
                raise BundleError("an encoder that scores documents reads pairs and has a score head")
        case ModelTask.GENERATE:
            raise BundleError("an encoder generates nothing: its task is embed or rerank")
    if spec.score_head:
        shape = (score_head_floats(manifest.model.hidden),)
        check_floats(manifest, spec.score_head, shape, f"a head over {manifest.model.hidden} numbers takes")


def _check_graph(manifest: Manifest, graph: GraphSpec) -> None:
    if graph.kind is not GraphKind.ENCODER or graph.rows is None:
        raise BundleError(f"graph {graph.name} is no encoder of a fixed number of rows")
    ids: Form = ("int32", (graph.rows,))
    known = row_forms(manifest, graph.rows, graph.rows) | {TYPES: ids, POSITIONS: ids}
    known[HIDDEN] = ("", (graph.rows, manifest.model.hidden))
    given = {tensor.name for tensor in graph.inputs}
    for tensor in graph.inputs:
        if tensor.name not in known or tensor.name == HIDDEN:
            raise BundleError(f"graph {graph.name} has the input {tensor.name}, which nothing provides")
        check_form(graph, "input", tensor, known[tensor.name])
    if not {IDS, MASK} <= given or not ({COS, SIN} <= given or POSITIONS in given):
        raise BundleError(f"graph {graph.name} lacks an input: it has {', '.join(sorted(given)) or 'none'}")
    if [tensor.name for tensor in graph.outputs] != [HIDDEN]:
        raise BundleError(f"graph {graph.name} must give {HIDDEN} and nothing else")
    check_form(graph, "output", graph.outputs[0], known[HIDDEN])
