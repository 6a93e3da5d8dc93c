"""`hexserve inspect`: a bundle drawn for a reader, and how long its steps took. No graph is opened."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.panel import Panel
from rich.table import Column, Table
from rich.text import Text

from engine.bundle.answer_format import NAME, AnswerFormat
from engine.bundle.encoder import POSITIONS, encoder_rows
from engine.bundle.loss_text import kv_text, parity_text
from engine.bundle.manifest import GraphKind, GraphSpec, Manifest, load_manifest
from engine.bundle.segments import LINEAR_DATA, SHARED_DATA
from engine.bundle.specs import EncoderSpec, FusedSpec, ModelTask, PoolingKind, PoolingSpec, QualitySpec, RerankSpec
from engine.bundle.stored_times import StoredThreads, StoredTimes, all_threads, all_times
from engine.bundle.variant import StepShape, shape_of
from engine.bundle.vision import Cutting, VisionSpec
from engine.errors import BundleError
from server.commands.tables import table

_ROWS = {PoolingKind.MEAN: "the mean of its rows", PoolingKind.CLS: "its first row", PoolingKind.LAST: "its last row"}
KV_SLOTS = (256, 1024, 4096, 16_384)  # of a pool of any size
_BAR_CELLS = 40


def encoder_facts(manifest: Manifest, spec: EncoderSpec) -> list[tuple[str, str]]:
    rope, steps = manifest.model.rope, ", ".join(map(str, encoder_rows(manifest)))
    has_table = any(tensor.name == POSITIONS for graph in manifest.graphs for tensor in graph.inputs)
    positions = f"a table, from {spec.position_offset} on" if has_table else f"rotary, theta {rope.theta:g}"
    return [
        ("positions", f"{positions}; token types: {spec.token_types}"),
        ("weights", manifest.quant),
        ("texts", f"{manifest.max_context:,} tokens at most; steps of {steps} rows hold several"),
        *(_vector_rows(manifest.pooling) if manifest.pooling is not None else _pair_rows(manifest.rerank)),
    ]


def _vector_rows(spec: PoolingSpec) -> list[tuple[str, str]]:
    length = "of length 1" if spec.normalise else "of any length"
    prompts = ", ".join(f"{name} {prompt!r}" for name, prompt in spec.prompts.items())
    return [
        ("vectors", f"{spec.dimensions} numbers, {length}: {_ROWS[spec.kind]}"),
        ("around a text", f"{_ids(spec.begin_ids)} ... {_ids(spec.end_ids)}"),
        ("prompts", f"{prompts or 'none'}; unless asked for: {spec.default_prompt or 'none'}"),
    ]


def _pair_rows(spec: RerankSpec | None) -> list[tuple[str, str]]:
    if spec is None:
        return []
    begin, middle, end = map(_ids, (spec.begin_ids, spec.middle_ids, spec.end_ids))
    return [("scores", f"of pairs: {begin} query {middle} document {end}")]


def _ids(ids: tuple[int, ...]) -> str:
    return ",".join(map(str, ids)) or "-"


def segment_table(manifest: Manifest) -> Table:
    rows = []
    for kind, weights, stored in (
        (GraphKind.LINEAR, manifest.quant, LINEAR_DATA),
        (GraphKind.ATTENTION, "none; runs for each sequence", ""),
        (GraphKind.RECURRENT, "convolutions; runs for each sequence", manifest.conv_weights),
    ):
        graphs = [graph for graph in manifest.graphs if graph.kind is kind]
        size = decimal(sum(manifest.files[graph.file].bytes for graph in graphs if graph.file in manifest.files))
        if graphs or kind is not GraphKind.RECURRENT:
            rows.append((kind.value, weights, str(len(graphs)), size, _file_size(manifest, stored)))
    if manifest.kv_scales:
        rows.append(("", f"scales of {manifest.kv_dtype} caches", "", "", _file_size(manifest, manifest.kv_scales)))
    rows.append(("", "embedding, norms, biases", "", "", _file_size(manifest, SHARED_DATA)))
    return table(("kind", "weights", "graphs", "size", "stored"), rows, "graphs", words=2)


def _file_size(manifest: Manifest, name: str) -> str:
    return decimal(manifest.files[name].bytes) if name in manifest.files else ""


def describe(folder: Path, graph: str | None = None) -> RenderableType:
    """Everything about a bundle as one rich renderable. graph: name of a graph whose tensors are listed too. Raises
    BundleError for a damaged bundle or an unknown graph."""
    manifest = load_manifest(folder)
    graphs = segment_table(manifest) if manifest.is_segmented else _graph_table(manifest)
    parts: list[RenderableType] = [_headline(manifest), graphs]
    if manifest.encoder is None:  # an encoder keeps nothing of a text
        parts += [_shape_bars(manifest), _memory_table(manifest)]
    parts.append(_files_table(manifest))
    if graph is not None:
        parts.append(_tensor_table(manifest, graph))
    return Group(*parts)


def _headline(manifest: Manifest) -> RenderableType:
    model, figures = manifest.model, parity_text(manifest.parity)
    heads = f"{model.heads} heads on {model.kv_heads} of {model.head_dim}"
    rows = [
        ("model", f"{model.family}, {model.parameters / 1e6:.1f} M parameters, vocabulary {model.vocab:,}"),
        ("layers", f"{model.layers} x (hidden {model.hidden}, {heads}, ffn {model.ffn})"),
        *(_generator_facts(manifest) if manifest.encoder is None else encoder_facts(manifest, manifest.encoder)),
        ("capabilities", ", ".join(manifest.capabilities)),
        ("parity", f"{figures} over {manifest.parity.get('tokens', 0.0):.0f} tokens" if figures else "not measured"),
        ("made by", ", ".join(f"{name} {version}" for name, version in manifest.versions.items())),
    ]
    grid = Table.grid(Column(style="bold cyan"), padding=(0, 2))
    for name, value in rows:
        grid.add_row(name, Text(value))
    return Panel(grid, title=f"[bold]{manifest.name}[/] for {manifest.target}", title_align="left", expand=False)


def _generator_facts(manifest: Manifest) -> list[tuple[str, str]]:
    model, rope, blocks = manifest.model, manifest.model.rope, manifest.diffusion
    denoised = f"denoised {blocks.block_length} tokens at a time, mask token {blocks.mask_token}" if blocks else ""
    sampling = msgspec.structs.asdict(manifest.text.sampling)
    facts = [
        ("states", _state_text(manifest)),
        ("rotary", f"{rope.kind}, theta {rope.theta:g}, {rope.rotary_dim} of {model.head_dim}, factor {rope.factor:g}"),
        ("weights", f"{manifest.quant}, {'tied' if model.tied_head else 'own'} head, split {manifest.split}"),
        ("codes", manifest.codes),
        ("quality", _quality_text(manifest.quality) if manifest.quality is not None else ""),
        ("context", f"{manifest.max_context:,} tokens a sequence"),
        ("cache", _cache_text(manifest)),
        ("fused", _fused_text(manifest.fused) if manifest.fused is not None else ""),
        ("blocks", denoised),
        ("task", _task_text(manifest)),
        ("vision", _vision_text(manifest.vision) if manifest.vision is not None else ""),
        ("stop ids", ", ".join(map(str, manifest.text.stop_ids)) or "none"),
        ("answers", _answer_text(manifest.text.writes)),
        ("sampling", ", ".join(f"{name} {value:g}" for name, value in sampling.items() if value is not None)),
    ]
    return [(name, text) for name, text in facts if text]


def _answer_text(answer: AnswerFormat) -> str:
    reasoning, calls = answer.reasoning, answer.calls
    parts = [f"reasoning {reasoning.opening}...{reasoning.closing}"] if reasoning is not None else []
    parts += [f"tool calls {calls.opening}{calls.begin}{NAME}{calls.named}".replace("\n", " ")] if calls else []
    return ", ".join(parts) or "plain text"


def _state_text(manifest: Manifest) -> str:
    """What a sequence carries through layers without keys and values, '' if there are none."""
    spec = manifest.model.recurrent
    if spec is None:
        return ""
    heads, keys, values = spec.memory_shape
    layers = f"{len(spec.layers)} of the layers are recurrent: {heads} heads of {keys} x {values}"
    return f"{layers}, convolution of {spec.kernel}; {decimal(spec.state_bytes)} a sequence"


def _vision_text(vision: VisionSpec) -> str:
    if vision.native is not None:
        return f"images in whole cells of {vision.native.cell} pixels, a token each, up to {vision.native.buckets[-1]}"
    cut = "as one tile" if vision.cutting is Cutting.WHOLE else "cut into a grid"
    return f"images {cut}, tiles of {vision.side} x {vision.side} pixels, {vision.tokens} tokens each"


def _task_text(manifest: Manifest) -> str:
    """What it is for beside chats, or instead of them; '' of a model for chats."""
    if manifest.task is ModelTask.GENERATE:
        return ""
    pooling = manifest.pooling
    use = f"{pooling.dimensions} dimensions by the {pooling.kind.value} token" if pooling is not None else "and chats"
    return f"{manifest.task.value}, {use}"


def _quality_text(quality: QualitySpec) -> str:
    """How codes were chosen, what it cost, and what it left of each kind of error."""
    memory = f", {decimal(quality.peak_bytes)}" if quality.peak_bytes else ""
    cost = f"{quality.tokens:,} tokens, {quality.seconds:.0f} s{memory}"
    errors = ", ".join(f"{kind} {each.nearest:.1e} to {each.chosen:.1e}" for kind, each in quality.errors.items())
    left = f"\noutput errors: {errors}" if errors else ""
    wide = f", {100 * quality.wide:.0f} % of the weights in 8 bits" if quality.wide else ""
    return f"{quality.level}: {', '.join(quality.methods)}{wide} ({cost}){left}"


def _cache_text(manifest: Manifest) -> str:
    """Bytes a token, type, and what rounding costs where parity was told."""
    text, lost = f"{decimal(manifest.kv_bytes_per_token)} a token ({manifest.kv_dtype})", kv_text(manifest.parity)
    return f"{text}; against floats: {lost}" if lost else text


def _fused_text(spec: FusedSpec) -> str:
    lengths = zip(spec.pd_prefill_len, spec.pd_total_len, strict=False)
    rows = ", ".join(f"{prompt} of {total}" for prompt, total in lengths)
    slots = "1 decode slot" if spec.decode_slots == 1 else f"{spec.decode_slots} decode slots"
    return f"{slots}, prompt rows {rows}; caches are written by the {'graph' if spec.kv_update_on_device else 'host'}"


def _graph_table(manifest: Manifest) -> Table:
    rows = [
        (
            spec.name,
            spec.kind.value,
            "free" if spec.rows is None else str(spec.rows),
            _context_text(spec),
            "" if spec.first_layer is None else f"{spec.first_layer}-{spec.last_layer}",
            f"{len(spec.inputs)}/{len(spec.outputs)}",
            _file_size(manifest, spec.file) or "?",
            _file_size(manifest, f"part_{spec.part}_of_{spec.parts}.data"),
        )
        for spec in manifest.graphs
    ]
    return table(("name", "kind", "rows", "context", "layers", "in/out", "graph", "weights"), rows, "graphs", words=2)


def _context_text(spec: GraphSpec) -> str:
    if spec.context is not None:
        return str(spec.context)
    return "free" if spec.rows is None and spec.kind in (GraphKind.DECODER, GraphKind.DEFAULT) else ""


def _shape_bars(manifest: Manifest) -> RenderableType:
    shapes = sorted({shape for spec in manifest.graphs if (shape := shape_of(spec)) is not None})
    if not shapes:
        return Text("shapes: free (any number of rows and KV slots)", style="bold")
    widest = max(shape.context for shape in shapes)
    grid = Table.grid(padding=(0, 1))
    for shape in shapes:
        grid.add_row(str(shape), _bar(shape, widest), f"{shape.past} past + {shape.rows} rows")
    return Panel(grid, title="shapes", title_align="left", expand=False)


def _bar(shape: StepShape, widest: int) -> Text:
    cells = max(1, round(_BAR_CELLS * shape.context / widest))
    own = min(cells, max(1, round(cells * shape.rows / shape.context)))
    return Text("█" * (cells - own), style="blue") + Text("█" * own, style="green")


def _memory_table(manifest: Manifest) -> Table:
    is_own = manifest.is_segmented or manifest.fused is not None
    pasts = {shape.past for spec in manifest.graphs if (shape := shape_of(spec)) is not None}
    sizes = {"keys and values": 0} | ({"with state": state} if (state := manifest.state_bytes_per_sequence) else {})
    rows = [
        (f"{slots:,}", *(decimal(slots * manifest.kv_bytes_per_token + more) for more in sizes.values()))
        for slots in sorted(pasts) or KV_SLOTS
    ]
    return table(("KV slots", *sizes), rows, "memory of one sequence" if is_own else "memory of one pool")


def _files_table(manifest: Manifest) -> Table:
    """The linear graphs together, without a hash."""
    linear = {graph.file for graph in manifest.graphs if graph.kind is GraphKind.LINEAR}
    sizes = [entry.bytes for name, entry in manifest.files.items() if name in linear]
    rows = [
        (name, f"{entry.sha256[:16]}..." if entry.sha256 else "", decimal(entry.bytes))
        for name, entry in sorted(manifest.files.items())
        if name not in linear
    ]
    if sizes:
        rows.append((f"linear_*.onnx ({len(sizes)} files)", "", decimal(sum(sizes))))
    rows.append(("together", "", decimal(sum(entry.bytes for entry in manifest.files.values()))))
    return table(("name", "sha256", "size"), rows, "files", words=2)


def _tensor_table(manifest: Manifest, name: str) -> Table:
    spec = next((spec for spec in manifest.graphs if spec.name == name), None)
    if spec is None:
        raise BundleError(f"the bundle has no graph {name}; it has {', '.join(spec.name for spec in manifest.graphs)}")
    rows = [
        (
            arrow,
            tensor.name,
            tensor.dtype,
            f"[{', '.join(map(str, tensor.shape))}]",
            "" if tensor.scale is None else f"{tensor.scale:g} ({tensor.zero_point or 0})",
        )
        for arrow, tensors in (("in", spec.inputs), ("out", spec.outputs))
        for tensor in tensors
    ]
    return table(("", "name", "type", "shape", "scale"), rows, f"tensors of {spec.name}", words=4)


def step_time_tables(bundle: Path, costs: Path) -> list[RenderableType]:
    """Of each machine: what it is, and the milliseconds of its steps."""
    found = [drawn for stored in all_threads(costs) for drawn in _thread_tables(stored)]
    for stored in all_times(costs, bundle):
        threads = f"{stored.threads} threads" if stored.threads else ""
        name = stored.processor or "a processor without a name"
        machine = ", ".join(filter(None, (name, f"{stored.cores} cores", threads, stored.how)))
        found += [Text(f"ms of a step on {machine}", style="bold"), _times_table(stored)]
    return found


def _thread_tables(stored: StoredThreads) -> Iterator[RenderableType]:
    machine = f"{stored.processor or 'a processor without a name'}, {stored.cores} cores"
    yield Text(f"ms of some layers of a first model on {machine}", style="bold")
    rows = [
        (f"{one.threads} that {'spin' if one.spins else 'sleep'}", f"{one.few_ms:.1f}", f"{one.many_ms:.1f}")
        for one in stored.tried
    ]
    yield table(("threads", "1 row", "32 rows"), rows)


def _times_table(stored: StoredTimes) -> Table:
    times = stored.of_shapes()
    pasts = sorted({shape.past for shape in times})
    rows = []
    for count in sorted({shape.rows for shape in times}):
        line = {shape.past: f"{milliseconds:.1f}" for shape, milliseconds in times.items() if shape.rows == count}
        rows.append((f"{count:,}", *(line.get(past, "") for past in pasts)))
    return table(("rows", *(f"past {past:,}" for past in pasts)), rows)
