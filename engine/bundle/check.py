"""Checks a manifest against itself: the shape and type that each tensor must have, given its graph and the model.
Legend: N = rows, C = context, P = past columns, K = KV heads, D = head size."""

from engine.bundle import tensors, weight_files
from engine.bundle.encoder import check_encoder
from engine.bundle.fused import check_fused
from engine.bundle.images import check_images
from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, TensorSpec
from engine.bundle.segments import check_segments
from engine.bundle.speech import check_speech
from engine.errors import BundleError


def check_contract(manifest: Manifest) -> None:
    """For graphs that together hold all layers of a step. BundleError names the graph and the tensor. After it, memory
    for caches and inputs may be taken by the manifest's numbers: they are the graphs' own."""
    if manifest.encoder is not None:
        check_encoder(manifest)
        return
    if manifest.speech is not None:
        check_speech(manifest)
        return
    _check_kinds(manifest)
    weight_files.check_head_basis(manifest)
    if manifest.is_segmented:
        check_segments(manifest)
        weight_files.check_kv_scales(manifest)
        weight_files.check_conv_weights(manifest)
        return
    weight_files.check_head_weight(manifest)
    _check_embedding(manifest)
    check_images(manifest)
    if manifest.is_serial:
        tensors.check_serial(manifest)
        return
    if manifest.model.recurrent is not None:
        raise BundleError("recurrent layers need a segmented bundle: in a pool there is no state for each sequence")
    if manifest.kv_scales:
        raise BundleError("kv_scales are for the caches of a segmented bundle")
    if manifest.fused is not None:
        check_fused(manifest)
        return
    windows = tensors.pool_window_slots(manifest)
    found: dict[tuple[int | None, int | None], list[tuple[str, set[int]]]] = {}
    for spec in manifest.graphs:
        _check_sights(manifest, {tensor.name for tensor in spec.inputs}, spec.name)
        layers: set[int] = set()
        for side, suffix, given in (("input", "_in", spec.inputs), ("output", "_out", spec.outputs)):
            for tensor in given:
                place = tensors.place_of(tensor.name, suffix)
                _check_head(manifest, spec, tensor, place)
                layers |= {place.layer} if place is not None else set()
                tensors.check_form(spec, side, tensor, _wanted(manifest, spec, tensor, suffix, windows))
        if layers:
            found.setdefault((spec.rows, spec.context), []).append((spec.name, layers))
    for parts in found.values():
        _check_layers(manifest, parts)


def _check_sights(manifest: Manifest, taken: set[str], graph: str) -> None:
    """Layers with windows or rotations of their own: the manifest tells of what a graph takes."""
    sizes = {*manifest.model.layer_windows} - {0}
    if tensors.WINDOW_MASK in taken and len(sizes) != 1:
        raise BundleError(f"graph {graph} takes {tensors.WINDOW_MASK}, one mask, for windows of {len(sizes)} sizes")
    if taken & set(tensors.WINDOW_ROTARY) and manifest.model.local_rope is None:
        raise BundleError(f"graph {graph} takes a rotation for windows, of which the manifest tells nothing")


def _check_embedding(manifest: Manifest) -> None:
    """Graphs take embeddings exactly where the manifest names a table of them, and as wide as it."""
    taken = [(graph, tensor) for graph in manifest.graphs for tensor in graph.inputs if tensor.name in tensors.EMBEDS]
    if bool(taken) != (manifest.embedding is not None):
        if not taken:
            raise BundleError("the manifest names a table of embeddings, but no graph takes any")
        raise BundleError(f"graph {taken[0][0].name} takes embeddings, but the manifest names no table of them")
    if manifest.embedding is None:
        return
    weight_files.check_table(manifest, manifest.embedding)
    for graph, tensor in taken:
        tensors.check_form(graph, "input", tensor, ("", (graph.rows or tensors.FREE_ROWS, manifest.embedding.width)))


def _check_kinds(manifest: Manifest) -> None:
    """What a model is said to be that its graphs cannot do together would otherwise be answered wrongly, or never."""
    if manifest.diffusion is not None and manifest.model.recurrent is not None:
        raise BundleError("diffusion: rows of recurrent layers see what is before them only, not a whole block")
    if manifest.lora and not manifest.is_segmented:
        raise BundleError("lora: only the graphs of a segmented bundle take adapters")
    if manifest.forecast is None:
        return
    if manifest.diffusion is not None:
        raise BundleError("forecast: a model that denoises blocks has no next token to forecast")
    if manifest.is_segmented or manifest.fused is not None or manifest.reads_whole_context:
        raise BundleError("forecast: its rows need graphs that take a mask over one pool of keys and values")
    if tensors.pool_window_slots(manifest):
        raise BundleError("forecast: its KV slots are the first of all layers, but those with a window have fewer")


def check_listed(manifest: Manifest) -> None:
    """BundleError when a file that graphs need is not among `files`, whose sizes and hashes are known."""
    binaries = manifest.npu.binaries if manifest.npu else ()
    prefix = manifest.forecast.file if manifest.forecast else ""
    floats = filter(None, (manifest.kv_scales, manifest.conv_weights, manifest.head_basis, prefix))
    for name in (*binaries, *(graph.file for graph in manifest.every_graph), *floats):
        weight_files.listed_bytes(manifest, name)


def _check_layers(manifest: Manifest, parts: list[tuple[str, set[int]]]) -> None:
    layers = [layer for _, own in parts for layer in own]
    if sorted(layers) != list(range(manifest.model.layers)):
        names = ", ".join(name for name, _ in parts)
        raise BundleError(
            f"graph {names} has caches of layers {', '.join(map(str, sorted(layers)))}, the manifest says that "
            f"the model has {manifest.model.layers}"
        )


def _check_head(manifest: Manifest, spec: GraphSpec, tensor: TensorSpec, place: tensors.Place | None) -> None:
    if place is not None and (place.head or 0) >= manifest.model.kv_heads:
        raise BundleError(f"graph {spec.name} has the cache {tensor.name}, the model has {manifest.model.kv_heads}")


def _wanted(manifest: Manifest, spec: GraphSpec, tensor: TensorSpec, suffix: str, windows: int) -> tensors.Form | None:
    """None for a tensor of which nothing is known, such as a hidden state. windows: `pool_window_slots`."""
    model, context = manifest.model, spec.context or tensors.FREE_CONTEXT
    rows = spec.rows or (tensors.FREE_LOGIT_ROWS if spec.kind is GraphKind.LMHEAD else tensors.FREE_ROWS)
    place = tensors.place_of(tensor.name, suffix)
    if place is None:
        logits: tensors.Form = ("", (rows, manifest.row_outputs))
        return (tensors.row_forms(manifest, rows, context) | {tensors.LOGITS: logits}).get(tensor.name)
    past = tensors.FREE_PAST if spec.rows is None or spec.context is None else spec.context - spec.rows
    past = context if tensors.is_scatter(manifest.graphs) else past
    if windows and isinstance(past, int) and model.attention_of(place.layer).window:
        past = min(past, windows)
    columns, heads = past if suffix == "_in" else rows, model.kv_heads if place.head is None else 1
    shape = (heads, columns, model.head_dim) if place.side else (heads, model.head_dim, columns)
    return manifest.kv_dtype, shape
