"""A Genie folder read into a manifest and the wrappers that run it. Nothing is written here. Formats: `config`
(genie_config.json), `parts` (tensors), `text` (tokenizer, template)."""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from msgspec.structs import replace

from engine.bundle.manifest import FORMAT_VERSION, GraphKind, GraphSpec, Manifest, NpuSpec, TensorSpec
from engine.bundle.model_spec import ModelSpec
from engine.bundle.specs import TableSpec
from engine.errors import BundleError
from engine.files import confined, is_regular, shown
from engine.genie import extras
from engine.genie.config import CONFIG_FILE, Fields, GenieConfig, load_optional, read_config
from engine.genie.images import read_images
from engine.genie.parts import Part, read_part
from engine.genie.roles import Role
from engine.genie.text import GenieText, read_genie_text, read_metadata, sample_of
from engine.genie.variants import Variant, cache_inputs, find_variants
from engine.runtime.qnn.binary import BinaryInfo, ContextNode
from engine.runtime.qnn.reader import check_age

IDS_TYPE = "int32"  # what is kept of a token where graphs keep neither key nor value
HIDDEN = "hidden_states"  # where the binaries have no common name for it
LOGITS = Role.LOGITS.value
TARGETS = {(60, 73): "x-elite", (88, 81): "x2-elite"}
USUAL_CHIP = (60, 73)


@dataclass(frozen=True, slots=True)
class Wrapper:
    """An ONNX file to write: the graph it is for, its nodes in running order, the hidden states between them."""

    graph: GraphSpec
    nodes: tuple[ContextNode, ...]
    between: tuple[TensorSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class GenieBundle:
    """Everything read. binaries: where files of graphs lie in the source, by name. The manifest has no files yet."""

    manifest: Manifest
    wrappers: tuple[Wrapper, ...]
    binaries: Mapping[str, Path]
    text: GenieText


def read_genie(folder: Path, describe: Callable[[Path], BinaryInfo], runtime: str = "") -> GenieBundle:
    """Read a Genie folder. describe: a binary's tensors; runtime: the installed QNN's version, '' = do not compare.
    BundleError names the file, the graph or the tensor that cannot be served, and why."""
    config = read_config(folder)
    binaries = _binaries(folder, config)
    infos = {name: describe(path) for name, path in binaries.items()}
    for name, info in infos.items():
        check_age(name, info, runtime)
    _check_names(infos)
    model = load_optional(folder / "config.json")
    vocabulary = config.vocabulary or model.integer("vocab_size", 1, 1 << 24, 0)
    parts = [read_part(graph, name, vocabulary) for name, info in infos.items() for graph in info.graphs]
    own = extras.read_extras(folder)
    _check_weights(parts, own)
    variants = find_variants(parts)
    text = read_genie_text(folder, config)
    wrappers = [wrapper for variant in variants for wrapper in _wrappers(variant, infos, own.are_parts_apart)]
    first, chip = variants[0], read_chip(folder)
    shape, caches = _model(config, model, variants), () if first.reads_whole_context else cache_inputs(first)
    keys = [slot for slot in caches if slot.meaning.role is Role.KEY] or caches
    kv_dtype = keys[0].spec.dtype if keys else IDS_TYPE
    forecast = extras.read_forecast(folder, config, shape, kv_dtype) if caches and not first.is_serial else None
    window, local_rope = extras.read_window(config, model, first)
    shape = replace(shape, local_rope=local_rope)
    embedding, layers = _tables(folder, config, parts)
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        name=folder.resolve().name,
        target=TARGETS.get(chip, f"v{chip[1]}"),
        quant=read_metadata(folder).text("precision", "").lower() or _quant(first),
        split="lmhead" if first.head else "none",
        created=int(time.time()),
        model=shape,
        graphs=tuple({wrapper.graph.name: wrapper.graph for wrapper in wrappers}.values()),
        kv_dtype=kv_dtype,
        max_context=_max_context(config, variants),
        text=text.spec,
        files={},
        versions={"qnn": qnn_version(infos)},
        source="genie",
        npu=_npu(chip, infos, wrappers),
        head_weight=own.lm_head_weight.name if own.lm_head_weight else "",
        forecast=forecast and forecast[0],
        embedding=embedding,
        layer_embedding=layers,
        window=window,
        sample=sample_of(folder, text.spec, infos, shape.vocab),
    )
    images = read_images(folder, model, text, manifest, describe)
    if images is not None:
        check_age(images.path.name, images.info, runtime)
        manifest, binaries = images.beside(manifest), binaries | {images.path.name: images.path}
        wrappers.append(Wrapper(images.graph, (images.node,)))
    files = {table.file: confined(folder, table.file) for table in (embedding, layers) if table is not None}
    if own.lm_head_weight:
        files[manifest.head_weight] = own.lm_head_weight
    if forecast is not None:
        files[forecast[0].file] = forecast[1]
    return GenieBundle(manifest, tuple(wrappers), binaries | files, text)


def _tables(folder: Path, config: GenieConfig, parts: Sequence[Part]) -> tuple[TableSpec | None, TableSpec | None]:
    """Of embeddings and of what each layer takes beside, where graphs take such."""
    embedding = layers = None
    if any(part.input_of(Role.EMBEDS) for part in parts):
        embedding = extras.read_table(folder, config.embedding, "dialog.embedding")
    if any(part.input_of(Role.LAYER_EMBEDS) for part in parts):
        layers = extras.read_table(folder, config.layer_embedding, "dialog.perlayer-embedding", extras.USUAL_LAYER_FILE)
    return embedding, layers


def qnn_version(infos: Mapping[str, BinaryInfo]) -> str:
    """What made a folder's binaries, as the first of them says."""
    return next(iter(infos.values())).build_id


def _npu(chip: tuple[int, int], infos: Mapping[str, BinaryInfo], wrappers: Iterable[Wrapper]) -> NpuSpec:
    return NpuSpec(
        soc_model=chip[0],
        htp_arch=chip[1],
        binaries={name: tuple(graph.name for graph in info.graphs) for name, info in infos.items()},
        chains={wrapper.graph.name: tuple((node.binary, node.graph) for node in wrapper.nodes) for wrapper in wrappers},
        sdk=qnn_version(infos),
    )


def _check_weights(parts: Iterable[Part], own: extras.GenieExtras) -> None:
    taken = [(part, slot) for part in parts if (slot := part.input_of(Role.WEIGHT)) is not None]
    if taken and own.lm_head_weight is None:
        part, slot = taken[0]
        raise BundleError(
            f"{part.binary}, graph {part.graph}: tensor {slot.name} is the LM head's weight matrix; no key of "
            f"{CONFIG_FILE} names the file it is in: name it in {extras.EXTRAS_FILE} as lm_head_weight"
        )
    if own.lm_head_weight is not None and not taken:
        raise BundleError(
            f"{extras.EXTRAS_FILE}: lm_head_weight is for a head that takes its weights; none of them does"
        )


def _binaries(folder: Path, config: GenieConfig) -> dict[str, Path]:
    """Context binaries in running order. Paths are relative to the folder; of any other only the name counts."""
    found: dict[str, Path] = {}
    for entry in config.binaries:
        relative = Path(entry.replace("\\", "/"))
        path = folder / relative
        try:
            if relative.is_absolute() or ".." in relative.parts or not is_regular(path):
                path = folder / relative.name
            if not is_regular(confined(folder, path.relative_to(folder).as_posix())):
                raise BundleError(f"{folder} has no {relative.name}, which ctx-bins names")
        except OSError as error:
            raise BundleError(f"{CONFIG_FILE}: ctx-bins: {shown(error)}") from error
        if relative.name in found:
            raise BundleError(f"ctx-bins names {relative.name} twice")
        found[relative.name] = path
    return found


def _check_names(infos: Mapping[str, BinaryInfo]) -> None:
    """The provider finds a graph of a shared binary by its name alone, among those of all binaries."""
    owners: dict[str, str] = {}
    is_shared = any(len(info.graphs) > 1 for info in infos.values())
    for binary, info in infos.items():
        for graph in info.graphs:
            owner = owners.setdefault(graph.name, binary)
            if is_shared and owner != binary:
                raise BundleError(f"graph {graph.name} is in {owner} and in {binary}; their names must differ")


def _wrappers(variant: Variant, infos: Mapping[str, BinaryInfo], are_apart: bool) -> list[Wrapper]:
    """One wrapper for the body, so that a step is one run; one for a lone head, run for rows that need logits only.
    are_apart: one for each part, but for prefill without logits, whose first parts would pass for whole ones."""
    names = _joints([*variant.body], "" if variant.head or variant.is_kv_only else LOGITS)
    is_apart = are_apart and not variant.is_kv_only
    count = (len(variant.body) if is_apart else 1) + (variant.head is not None)
    if is_apart:
        found = [
            # An embedding has no context; one graph of a row count serves all of them.
            _body_wrapper((part,), names[index : index + 2], part.kind, part.context, (index + 1, count), infos)
            for index, part in enumerate(variant.body)
        ]
    else:
        found = [_body_wrapper(variant.body, names, _kind(variant), variant.context, (1, count), infos)]
    return found if variant.head is None else [*found, _head_wrapper(variant.head, infos, count)]


def _body_wrapper(
    parts: Sequence[Part],
    names: Sequence[str],
    kind: GraphKind,
    context: int | None,
    place: tuple[int, int],
    infos: Mapping[str, BinaryInfo],
) -> Wrapper:
    """Neighbouring parts. names: of the values before, between and behind them. place: part and number of parts."""
    rows, layers = parts[0].rows, [layer for part in parts for layer in part.layers]
    name = f"ar{rows}_cl{context or rows}_{place[0]}_of_{place[1]}"
    later = [slot for part in parts[1:] for slot in part.inputs if slot.meaning.role is not Role.HIDDEN]
    taken = [*parts[0].inputs, *later]
    results = [_result(part, inner) for part, inner in zip(parts, names[1:], strict=True) if inner]
    graph = GraphSpec(
        name=name,
        file=f"{name}.onnx",
        kind=kind,
        part=place[0],
        parts=place[1],
        inputs=_unique(
            replace(slot.spec, name=names[0]) if slot.meaning.role is Role.HIDDEN else slot.spec for slot in taken
        ),
        outputs=(
            *results[len(parts) - 1 :],
            *(slot.spec for part in parts for slot in part.outputs if slot.meaning.layer >= 0),
        ),
        rows=rows,
        context=context,
        first_layer=min(layers, default=None),
        last_layer=max(layers, default=None),
    )
    nodes = tuple(_node(part, *around, infos) for part, around in zip(parts, pairwise(names), strict=True))
    return Wrapper(graph, nodes, tuple(results[: len(parts) - 1]))


def _kind(variant: Variant) -> GraphKind:
    if variant.is_kv_only:
        return GraphKind.DECODER_PREFILL
    return GraphKind.DECODER if variant.head else GraphKind.DEFAULT


def _head_wrapper(head: Part, infos: Mapping[str, BinaryInfo], count: int) -> Wrapper:
    taken, given = head.input_of(Role.HIDDEN), head.output_of(Role.LOGITS)
    assert taken is not None and given is not None
    # A head has no context; the pattern of names wants one, and one graph of a row count serves all of them.
    name = f"ar{head.rows}_cl{head.rows}_{count}_of_{count}"
    graph = GraphSpec(
        name=name,
        file=f"{name}.onnx",
        kind=GraphKind.LMHEAD,
        part=count,
        parts=count,
        inputs=tuple(slot.spec for slot in head.inputs),
        outputs=(given.spec,),
        rows=head.rows,
    )
    return Wrapper(graph, (_node(head, taken.name, LOGITS, infos),))


def _joints(body: list[Part], last: str) -> list[str]:
    """Value names before, between and after the parts: the binaries' own wherever both sides agree, as only these can
    be checked (others bind by position). "" after a part that gives keys and values only. last "" = its own."""
    names = [Role.IDS.value]
    for before, after in pairwise(body):
        given, taken = before.result, after.input_of(Role.HIDDEN)
        assert given is not None and taken is not None
        agreed = given.name == taken.name and given.name not in names
        names.append(given.name if agreed else f"{HIDDEN}_{len(names)}")
    result = body[-1].result
    if result is None or body[-1].kind is GraphKind.DECODER_PREFILL:
        return [*names, ""]
    own = result.name
    return [*names, last or (f"{HIDDEN}_{len(names)}" if own in names else own)]


def _node(part: Part, before: str, after: str, infos: Mapping[str, BinaryInfo]) -> ContextNode:
    inputs = tuple(before if slot.meaning.role is Role.HIDDEN else slot.spec.name for slot in part.inputs)
    outputs = tuple(slot.spec.name if slot.meaning.layer >= 0 else after for slot in part.outputs)
    return ContextNode(part.graph, part.binary, inputs, outputs, sdk_version=infos[part.binary].build_id)


def _result(part: Part, name: str) -> TensorSpec:
    assert part.result is not None
    return replace(part.result.spec, name=name)


def _unique(specs: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    """One spec for each name: mask and rotation go to every part, and must be alike."""
    found: dict[str, TensorSpec] = {}
    for spec in specs:
        first = found.setdefault(spec.name, spec)
        if first != spec:
            raise BundleError(f"input {spec.name} differs between parts: {first} and {spec}")
    return tuple(found.values())


def _model(config: GenieConfig, model: Fields, variants: tuple[Variant, ...]) -> ModelSpec:
    first = variants[0]
    cos = next(part.input_of(Role.COS) for part in first.body if part.input_of(Role.COS))
    logits = first.chain[-1].output_of(Role.LOGITS)
    assert cos is not None and logits is not None
    wide = (Role.EMBEDS, Role.HIDDEN)
    hidden = [slot.spec for part in first.chain for slot in part.inputs if slot.meaning.role in wide]
    widest = max(variant.context for variant in variants)
    rotary = int(cos.spec.shape[-1]) * 2
    layers, kv_heads, head_dim = _cache_sizes(first, model, rotary)
    if rotary > head_dim:
        raise BundleError(
            f"tensor {cos.name} has {rotary // 2} columns; heads of {head_dim} turn at most {head_dim // 2} pairs"
        )
    return ModelSpec(
        family=model.text("model_type", "unknown"),
        layers=layers,
        hidden=int(hidden[0].shape[-1]) if hidden else model.integer("hidden_size", 1, 1 << 20, 0),
        heads=model.integer("num_attention_heads", 1, 4096, 0),
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=model.integer("intermediate_size", 1, 1 << 24, 0),
        vocab=int(logits.spec.shape[-1]),
        rope=extras.genie_rope(config, model, rotary, widest),
    )


def _cache_sizes(variant: Variant, model: Fields, rotary: int) -> tuple[int, int, int]:
    """Layers, key heads and head size: of the caches; where there are none, as far as config.json tells."""
    if variant.is_serial:
        return _serial_sizes(variant, model)
    keys = [slot.spec for slot in cache_inputs(variant) if slot.meaning.role is Role.KEY]
    if not keys:
        heads = model.integer("num_key_value_heads", 1, 4096, 1)
        return model.integer("num_hidden_layers", 1, 1024, 1), heads, model.integer("head_dim", 2, 4096, rotary)
    layers = sum(len(part.layers) for part in variant.body)
    return layers, int(keys[0].shape[0]) * len(keys) // layers, int(keys[0].shape[2])


def _serial_sizes(variant: Variant, model: Fields) -> tuple[int, int, int]:
    """The same where layers keep different things: of the first keys, windows only where there are no others."""
    caches = cache_inputs(variant)
    layers = max(slot.meaning.layer for slot in caches) + 1
    keys = [slot for role in (Role.KEY, Role.WINDOW_KEY) for slot in caches if slot.meaning.role is role]
    if not keys:
        raise BundleError("no layer of the bundle has keys and values: models of states alone are not supported")
    shape, where = keys[0].spec.shape, (keys[0].meaning.role, keys[0].meaning.layer)
    heads = int(shape[0]) * sum((slot.meaning.role, slot.meaning.layer) == where for slot in keys)
    return max(layers, model.integer("num_hidden_layers", 1, 1024, layers)), heads, int(shape[2])


def _max_context(config: GenieConfig, variants: tuple[Variant, ...]) -> int:
    """Tokens of one sequence: the last one needs no column of the past; without a past each has a row."""
    if variants[0].reads_whole_context:
        longest = max(variant.rows for variant in variants)
        return min(longest, config.context_tokens or longest)
    widest = max(variant.context - variant.rows for variant in variants if not variant.is_kv_only) + 1
    return min(widest, config.context_tokens) if config.context_tokens else widest


def _quant(variant: Variant) -> str:
    """The precision where metadata does not tell it: w4a16 has integer caches, others floating point ones."""
    mask = next(slot for part in variant.body if (slot := part.input_of(Role.MASK)))
    kind = (cache_inputs(variant) or [mask])[0].spec.dtype
    return "w4a16" if kind.startswith("uint") else kind


def read_chip(folder: Path) -> tuple[int, int]:
    """(soc_model, Hexagon version) of htp_backend_ext_config.json, X Elite's where the file does not tell."""
    fields = load_optional(folder / "htp_backend_ext_config.json")
    devices = fields.values.get("devices", fields.group("backend_extensions").values.get("devices"))
    if not isinstance(devices, list) or not devices or not isinstance(devices[0], dict):
        return USUAL_CHIP
    device = Fields(devices[0], "htp_backend_ext_config.json", "devices[0].")
    architecture = re.fullmatch(r"v(\d{2,3})", device.text("dsp_arch", f"v{USUAL_CHIP[1]}"))
    soc = device.integer("soc_model", 0, 1 << 16, device.integer("soc_id", 0, 1 << 16, USUAL_CHIP[0]))
    return soc, int(architecture[1]) if architecture else USUAL_CHIP[1]
