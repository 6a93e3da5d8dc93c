"""`hexserve inspect`: a bundle drawn for a reader. Reads the manifest only; never opens a graph."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from engine.bundle.answer_format import NAME, AnswerFormat
from engine.bundle.fused_spec import FusedSpec
from engine.bundle.manifest import DiffusionSpec, GraphKind, GraphSpec, Manifest, TensorSpec, load_manifest
from engine.bundle.quality_spec import QualitySpec
from engine.bundle.task import ModelTask
from engine.bundle.variant import PassShape, shape_of
from engine.errors import BundleError
from server.commands.inspect.encoders import encoder_facts
from server.commands.inspect.segments import grouped_files, segment_table
from server.commands.inspect.sizes import size_text

POOL_COLUMNS = (256, 1024, 4096, 16_384)
_BAR_CELLS = 40


def describe(folder: Path, graph: str | None = None, pool_columns: Sequence[int] = POOL_COLUMNS) -> RenderableType:
    """Everything about a bundle as one rich renderable.

    graph: name of a graph whose tensors are listed too. pool_columns: sizes to give the memory of a pool for.
    Raises BundleError for a damaged bundle or an unknown graph.
    """
    manifest = load_manifest(folder)
    graphs = segment_table(manifest) if manifest.is_segmented else _graph_table(manifest)
    parts: list[RenderableType] = [_headline(manifest), graphs]
    if manifest.encoder is None:  # an encoder keeps nothing of a text
        parts += [_shape_bars(manifest), _memory_table(manifest, pool_columns)]
    parts.append(_files_table(manifest))
    if graph is not None:
        parts.append(_tensor_table(_find(manifest, graph)))
    return Group(*parts)


def pool_bytes(manifest: Manifest, columns: int) -> int:
    """Bytes of keys and values of one pool of so many columns, over all layers."""
    return columns * manifest.kv_bytes_per_token


def _headline(manifest: Manifest) -> RenderableType:
    model = manifest.model
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold cyan")
    grid.add_column()
    heads = f"{model.heads} heads on {model.kv_heads} of {model.head_dim}"
    rows = [
        ("model", f"{model.family}, {model.parameters / 1e6:.1f} M parameters, vocabulary {model.vocab:,}"),
        ("layers", f"{model.layers} x (hidden {model.hidden}, {heads}, ffn {model.ffn})"),
        *(_generator_facts(manifest) if manifest.encoder is None else encoder_facts(manifest, manifest.encoder)),
        ("parity", _parity_text(manifest.parity)),
        ("made by", ", ".join(f"{name} {version}" for name, version in manifest.versions.items())),
    ]
    for name, value in rows:
        grid.add_row(name, Text(value))
    return Panel(grid, title=f"[bold]{manifest.name}[/] for {manifest.target}", title_align="left", expand=False)


def _generator_facts(manifest: Manifest) -> list[tuple[str, str]]:
    model, rope = manifest.model, manifest.model.rope
    return [
        *_recurrent_rows(manifest),
        ("rotary", f"{rope.kind}, theta {rope.theta:g}, {rope.rotary_dim} of {model.head_dim}, factor {rope.factor:g}"),
        ("weights", f"{manifest.quant}, {'tied' if model.tied_head else 'own'} head, split {manifest.split}"),
        *([("quality", _quality_text(manifest.quality))] if manifest.quality is not None else []),
        ("context", f"{manifest.max_context:,} tokens a sequence"),
        ("cache", _cache_text(manifest)),
        *([("fused", _fused_text(manifest.fused))] if manifest.fused is not None else []),
        *([("blocks", _blocks_text(manifest.diffusion))] if manifest.diffusion is not None else []),
        *([("task", _task_text(manifest))] if manifest.task is not ModelTask.GENERATE else []),
        ("stop ids", ", ".join(map(str, manifest.text.stop_ids)) or "none"),
        ("answers", _answer_text(manifest.text.writes)),
    ]


def _answer_text(answer: AnswerFormat) -> str:
    """What marks reasoning and tool calls."""
    reasoning, calls = answer.reasoning, answer.calls
    parts = [f"reasoning {reasoning.opening}...{reasoning.closing}"] if reasoning is not None else []
    parts += [f"tool calls {calls.opening}{calls.begin}{NAME}{calls.named}".replace("\n", " ")] if calls else []
    return ", ".join(parts) or "plain text"


def _recurrent_rows(manifest: Manifest) -> list[tuple[str, str]]:
    """What a sequence carries through layers without keys and values, if there are such."""
    spec = manifest.model.recurrent
    if spec is None:
        return []
    heads, keys, values = spec.memory_shape
    layers = f"{len(spec.layers)} of the layers are recurrent: {heads} heads of {keys} x {values}"
    return [("states", f"{layers}, convolution of {spec.kernel}; {size_text(spec.state_bytes)} a sequence")]


def _blocks_text(diffusion: DiffusionSpec) -> str:
    return f"denoised {diffusion.block_length} tokens at a time, mask token {diffusion.mask_token}"


def _task_text(manifest: Manifest) -> str:
    """What it is for beside chats, or instead of them."""
    pooling = manifest.pooling
    if pooling is None:
        return f"{manifest.task.value}, and chats"
    return f"{manifest.task.value}, {pooling.dimensions} dimensions by the {pooling.kind.value} token"


def _quality_text(quality: QualitySpec) -> str:
    """How codes were chosen, what it cost, and what it left of each kind of error."""
    memory = f", {size_text(quality.peak_bytes)}" if quality.peak_bytes else ""
    cost = f"{quality.tokens:,} tokens, {quality.seconds:.0f} s{memory}"
    errors = ", ".join(f"{kind} {each.nearest:.1e} to {each.chosen:.1e}" for kind, each in quality.errors.items())
    left = f"\noutput errors: {errors}" if errors else ""
    text = f"{quality.level}: {', '.join(quality.methods)} ({cost}){left}"
    learned = ", ".join(f"{name} {each.chosen:.1e} to {each.learned:.1e}" for name, each in quality.learned.items())
    return f"{text}\non text held back: {learned}" if learned else text


def _parity_text(parity: dict[str, float]) -> str:
    if not parity:
        return "not measured"
    return f"{_figures_text(parity)} over {parity.get('tokens', 0.0):.0f} tokens"


def _cache_text(manifest: Manifest) -> str:
    """Bytes a token, type, and what rounding costs where parity was told."""
    text, parity = f"{size_text(manifest.kv_bytes_per_token)} a token ({manifest.kv_dtype})", manifest.parity
    if "kv_cosine" in parity:
        return f"{text}; against float32: cosine {parity['kv_cosine']:.6f}"
    if "kv_kl" not in parity:
        return text
    return f"{text}; against float32: top-1 {100 * parity.get('kv_top1', 0.0):.1f} %, KL {_kl_text(parity, 'kv_')}"


def _fused_text(spec: FusedSpec) -> str:
    """What a pass may hold, and who writes the caches."""
    lengths = zip(spec.pd_prefill_len, spec.pd_total_len, strict=False)
    rows = ", ".join(f"{prompt} of {total}" for prompt, total in lengths)
    slots = "1 decode slot" if spec.decode_slots == 1 else f"{spec.decode_slots} decode slots"
    return f"{slots}, prompt rows {rows}; caches are written by the {'graph' if spec.kv_update_on_device else 'host'}"


def _figures_text(parity: dict[str, float]) -> str:
    if "cosine" in parity:
        return f"cosine {parity['cosine']:.6f}, largest error {parity.get('relative_error', 0.0):.1e}"
    top1, error = (parity.get(name, 0.0) for name in ("top1", "relative_error"))
    return f"top-1 {100 * top1:.1f} %, KL {_kl_text(parity, '')}, largest error {error:.1e}"


def _kl_text(parity: dict[str, float], prefix: str) -> str:
    """With its interval, which bundles of earlier versions do not have."""
    kl, low, high = (parity.get(f"{prefix}{name}") for name in ("kl", "kl_low", "kl_high"))
    interval = "" if low is None or high is None else f" ({low:.1e} to {high:.1e})"
    return f"{kl or 0.0:.1e}{interval}"


def _graph_table(manifest: Manifest) -> RenderableType:
    table = Table(title="graphs", title_justify="left", title_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("kind", style="cyan", no_wrap=True)
    for heading in ("rows", "context", "layers", "in/out", "graph", "weights"):
        table.add_column(heading, justify="right")
    for spec in manifest.graphs:
        layers = "" if spec.first_layer is None else f"{spec.first_layer}-{spec.last_layer}"
        data = manifest.files.get(f"part_{spec.part}_of_{spec.parts}.data")
        table.add_row(
            Text(spec.name),
            spec.kind.value,
            "free" if spec.rows is None else str(spec.rows),
            _context_text(spec),
            layers,
            f"{len(spec.inputs)}/{len(spec.outputs)}",
            size_text(manifest.files[spec.file].bytes) if spec.file in manifest.files else "?",
            size_text(data.bytes) if data else "",
        )
    return table


def _context_text(spec: GraphSpec) -> str:
    if spec.context is not None:
        return str(spec.context)
    return "free" if spec.rows is None and spec.kind in (GraphKind.DECODER, GraphKind.DEFAULT) else ""


def _shape_bars(manifest: Manifest) -> RenderableType:
    """One bar for each fixed shape: past columns, then the rows' own at its end."""
    found = {shape_of(spec) for spec in manifest.graphs}
    shapes = sorted(shape for shape in found if shape is not None)
    if not shapes:
        return Text("shapes: free (any number of rows and columns)", style="bold")
    widest = max(shape.context for shape in shapes)
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="bold")
    table.add_column()
    table.add_column(justify="right", style="dim")
    for shape in shapes:
        table.add_row(str(shape), _bar(shape, widest), f"{shape.past} past + {shape.rows} rows")
    return Panel(table, title="shapes", title_align="left", expand=False)


def _bar(shape: PassShape, widest: int) -> Text:
    cells = max(1, round(_BAR_CELLS * shape.context / widest))
    own = min(cells, max(1, round(cells * shape.rows / shape.context)))
    return Text("█" * (cells - own), style="blue") + Text("█" * own, style="green")


def _memory_table(manifest: Manifest, pool_columns: Sequence[int]) -> RenderableType:
    is_own = manifest.is_segmented or manifest.fused is not None
    title = "memory of one sequence" if is_own else "memory of one pool"
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("columns", justify="right")
    table.add_column("keys and values", justify="right")
    state = manifest.state_bytes_per_sequence
    if state:
        table.add_column("with state", justify="right")
    pasts = {shape.past for spec in manifest.graphs if (shape := shape_of(spec)) is not None}
    for columns in sorted(pasts) or pool_columns:
        held = pool_bytes(manifest, columns)
        table.add_row(f"{columns:,}", *(size_text(count) for count in ((held, held + state) if state else (held,))))
    return table


def _files_table(manifest: Manifest) -> RenderableType:
    table = Table(title="files", title_justify="left", title_style="bold")
    table.add_column("name")
    table.add_column("size", justify="right")
    table.add_column("sha256", style="dim")
    for name, size, sha256 in grouped_files(manifest):
        table.add_row(Text(name), size_text(size), f"{sha256[:16]}..." if sha256 else "")
    table.add_row("[bold]together", size_text(sum(entry.bytes for entry in manifest.files.values())), "")
    return table


def _find(manifest: Manifest, name: str) -> GraphSpec:
    for spec in manifest.graphs:
        if spec.name == name:
            return spec
    raise BundleError(f"the bundle has no graph {name}; it has {', '.join(spec.name for spec in manifest.graphs)}")


def _tensor_table(spec: GraphSpec) -> RenderableType:
    table = Table(title=f"tensors of {spec.name}", title_justify="left", title_style="bold")
    table.add_column("")
    table.add_column("name")
    table.add_column("type", style="cyan")
    table.add_column("shape")
    table.add_column("scale", justify="right")
    for arrow, tensors in (("in", spec.inputs), ("out", spec.outputs)):
        for tensor in tensors:
            table.add_row(arrow, Text(tensor.name), tensor.dtype, Text(_shape_text(tensor)), _scale_text(tensor))
    return table


def _shape_text(tensor: TensorSpec) -> str:
    return "[" + ", ".join(map(str, tensor.shape)) + "]"


def _scale_text(tensor: TensorSpec) -> str:
    return "" if tensor.scale is None else f"{tensor.scale:g} ({tensor.zero_point or 0})"
