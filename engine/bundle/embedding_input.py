"""Whether prompts may be given as embeddings: every pass begins with a graph that only turns token ids into them."""

from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, TensorSpec

WITH_LAYERS = (GraphKind.DECODER, GraphKind.DECODER_PREFILL, GraphKind.DEFAULT)


def embedding_width(manifest: Manifest) -> int | None:
    """Numbers of one token's embedding; None for a bundle that takes token ids only."""
    tables = [graph for graph in manifest.graphs if graph.kind is GraphKind.LUT]
    layers = [graph for graph in manifest.graphs if graph.kind in WITH_LAYERS]
    takes_ids = any(tensor.name == "input_ids" for graph in layers for tensor in graph.inputs)
    if not tables or takes_ids or manifest.is_segmented or manifest.reads_whole_context:
        return None
    width = embedding_of(tables[0]).shape[-1]
    return width if isinstance(width, int) else None


def embedding_of(table: GraphSpec) -> TensorSpec:
    """What an embedding graph gives: hidden states [1, N, H]."""
    (given,) = table.outputs
    return given
