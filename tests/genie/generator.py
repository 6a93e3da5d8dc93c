"""Writes Genie folders that keep the contract exactly, from a small checkpoint: every era's names, splits and types.

The network is computed in floating point; quantised tensors exist at the graphs' edges, where the contract is.
"""

import json
import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from engine.bundle.manifest import GraphKind
from engine.bundle.model_spec import ModelSpec
from engine.bundle.variant import StepShape
from engine.compile.arguments import CompileArguments, Quant
from engine.compile.graphs.lowering import PLAIN
from engine.compile.graphs.pool import GraphPlan, PartPlan, build_graph
from engine.compile.quantisation.packed import PackedPart
from engine.compile.quantisation.packer import WeightPacker
from engine.compile.quantisation.weight_file import WeightFile
from engine.compile.sources.checkpoint import SafetensorsCheckpoint, read_json
from engine.models.family import read_network
from engine.models.network import Network
from engine.runtime.qnn.binary import BinaryGraph, BinaryInfo, BinaryTensor, QnnEncoding
from tests.genie.edges import HEAD, EdgeEncoding, calibrate, drop_result, encode_edges, scatter_edges, split_heads
from tests.genie.geniex_edges import (
    WINDOW,
    add_layer_table,
    layer_table,
    tell_windows,
    with_images,
    with_layer_inputs,
    with_states,
    with_windows,
)
from tests.head_weight import expose_weight

EMBEDDED = "_model_embed_tokens_Gather_Gather_output_0"
TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json")
BUILD_ID = "v2.45.0.251201120000"
FORECAST_IDS = 4


@dataclass(frozen=True)
class Era:
    """How a release named things. {i}: part, {n}: parts, {model}: model."""

    binary: str
    prefixed_graphs: bool


ERAS = {
    "0.46": Era("{model}_part_{i}_of_{n}.bin", True),
    "0.65": Era("part{i}_of_{n}.bin", True),
    "serialized": Era("weight_sharing_model_{i}_of_{n}.serialized.bin", False),
    "zoo": Era("model-{i}.bin", False),
}


@dataclass(frozen=True)
class Recipe:
    """What to generate. precision w4a16: u16 activations and u8 caches; w4: everything float16; twin: float32.

    same_hidden_names: neighbouring parts agree on the hidden state's name, as exporters do most of the time.
    scatter, index: fresh columns are written at `cache_index` of that type. heads: what stands before a head's number
    in its own cache's name, "" = all heads in one. ssd: a dialog that speculates on its forecast prefix.
    kv_only_rows: the variants of so many rows end with keys and values.
    head_weight: the lone head takes its weights as an input, in the type of the graphs; "" in hexserve.json = not told.
    order: of the parts, as hexserve.json says it. table: the type of a table that the host looks tokens up in, for
    graphs that take `inputs_embeds`, "" = part 1 does that. beside: windows, states, images or layers, or "windows
    layers", in one part.
    one_graph_per_binary: what the emulator can load.
    """

    era: str = "0.65"
    parts: int = 3
    head_alone: bool = False
    shapes: tuple[StepShape, ...] = (StepShape(1, 63), StepShape(8, 56))
    precision: str = "w4a16"
    scatter: bool = False
    index: str = "int32"
    heads: str = ""
    ssd: bool = False
    kv_only_rows: tuple[int, ...] = ()
    head_weight: str | None = None
    order: str = ""
    table: str = ""
    beside: str = ""
    logits: str = "uint16"
    caches: str = "uint8"
    mask_depth: float = 100.0
    same_hidden_names: bool = True
    one_graph_per_binary: bool = False
    context_tokens: int = 64

    def for_emulator(self, context: int) -> "Recipe":
        """The same with one graph in each binary."""
        return replace(self, one_graph_per_binary=True, context_tokens=context)


@dataclass(frozen=True)
class Generated:
    """A folder and what its binaries stand for. models, infos: by binary name, then by graph name."""

    folder: Path
    recipe: Recipe
    models: dict[str, dict[str, onnx.ModelProto]] = field(default_factory=dict)
    infos: dict[str, BinaryInfo] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """A checkpoint's network with its weights packed for each part."""

    network: Network
    parts: tuple[PartPlan, ...]
    packed: tuple[PackedPart, ...]
    folder: Path
    forecast_ids: int = 0  # rows of the embedding table behind the vocabulary


def cut(layers: int, parts: int, head_alone: bool, takes_embeddings: bool = False) -> tuple[PartPlan, ...]:
    """Part 1 is the embedding, the layers are spread over the others, the head is in the last part or is the last."""
    source = "inputs_embeds" if takes_embeddings else "input_ids"
    if parts == 1:
        return (PartPlan(1, 1, GraphKind.DEFAULT, not takes_embeddings, range(layers), True, source, "logits"),)
    decoders = parts - 1 - head_alone + takes_embeddings
    assert decoders >= 1
    edges = [round(index * layers / decoders) for index in range(decoders + 1)]
    plans = [] if takes_embeddings else [PartPlan(1, parts, GraphKind.LUT, True, range(0), False, source, EMBEDDED)]
    for number in range(decoders):
        span = range(edges[number], edges[number + 1])
        last = number == decoders - 1 and not head_alone
        result = "logits" if last else f"_model_model_layers_{span[-1]}_Add_1_output_0"
        taken = plans[-1].result if plans else source
        plans.append(PartPlan(len(plans) + 1, parts, GraphKind.DECODER, False, span, last, taken, result))
    if head_alone:
        plans.append(PartPlan(parts, parts, GraphKind.LMHEAD, False, range(0), True, plans[-1].result, "logits"))
    return tuple(plans)


def pack(checkpoint: Path, folder: Path, parts: tuple[PartPlan, ...]) -> Source:
    """Write every part's weights into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    network = read_network(read_json(checkpoint / "config.json"), 0)
    arguments = CompileArguments(checkpoint, folder, quant=Quant.FP32)
    packed = []
    with SafetensorsCheckpoint(checkpoint) as weights:
        packer = WeightPacker(weights, network, arguments, lambda _: None)
        for part in parts:
            with WeightFile(folder, part.data_file) as file:
                packed.append(packer.pack(part, file, file))
    return Source(network, parts, tuple(packed), folder)


def part_model(source: Source, number: int, shape: StepShape, dtype: str, name: str) -> onnx.ModelProto:
    """One part as a floating point model of one shape, its weights inside."""
    plan = GraphPlan(name, source.parts[number - 1], shape)
    model = build_graph(plan, source.packed[number - 1], source.network, PLAIN, dtype).model(name)
    onnx.external_data_helper.load_external_data_for_model(model, str(source.folder))
    if number == 1 and source.forecast_ids:
        extend_table(model, source.forecast_ids)
    return model


def extend_table(model: onnx.ModelProto, rows: int) -> None:
    """Append rows to the embedding table: as large as the others, and like none of them."""
    lookup = next(node for node in model.graph.node if node.op_type == "Gather")
    table = next(tensor for tensor in model.graph.initializer if tensor.name == lookup.input[0])
    values = numpy_helper.to_array(table)
    added = np.random.default_rng(9).normal(0, values.std(), (rows, values.shape[1])).astype(values.dtype)
    table.CopyFrom(numpy_helper.from_array(np.concatenate([values, added]), table.name))


def generate(checkpoint: Path, folder: Path, recipe: Recipe) -> Generated:
    """Write the folder; its binaries are placeholders, described and computed by what is returned."""
    folder.mkdir(parents=True)
    layers = read_network(read_json(checkpoint / "config.json"), 0).spec.layers
    plans = cut(layers, recipe.parts, recipe.head_alone, bool(recipe.table))
    source = pack(checkpoint, folder.parent / f"{folder.name}.weights", plans)
    source = replace(source, forecast_ids=FORECAST_IDS if recipe.ssd else 0)
    made = Generated(folder, recipe)
    table = embedding_table(checkpoint)
    encodings = _encodings(source, recipe, table)
    for number in range(1, recipe.parts + 1):
        graphs = {name: shape for shape in recipe.shapes for name in [graph_name(recipe, shape, number)]}
        models = {
            name: _model(source, number, shape, name, recipe, encodings)
            for name, shape in graphs.items()
            if source.parts[number - 1].layers or number == 1 or shape.rows not in recipe.kv_only_rows
        }
        binary = ERAS[recipe.era].binary.format(model="tiny", i=number, n=recipe.parts)
        if recipe.one_graph_per_binary:
            for name, model in models.items():
                made.models[f"{Path(binary).stem}_{name}.bin"] = {name: model}
        else:
            made.models[binary] = models
    aliases = {f"hidden_into_{part.number}": part.source for part in source.parts}
    for place, (binary, models) in enumerate(made.models.items()):
        info = [describe(name, model, encodings, aliases) for name, model in models.items()]
        turned = info[place % len(info) :] + info[: place % len(info)]  # the order in a binary is not stable
        made.infos[binary] = BinaryInfo(BUILD_ID, tuple(turned))
        (folder / binary).write_bytes(b"placeholder " + binary.encode())
    write_texts(checkpoint, folder, recipe, source.network, tuple(made.models))
    if recipe.table:
        add_embedding(folder, recipe.table, table)
    if "windows" in recipe.beside:
        tell_windows(folder)
    if "layers" in recipe.beside:
        add_layer_table(folder, layer_table(len(table), layers, table.shape[1]))
    return made


def graph_name(recipe: Recipe, shape: StepShape, number: int) -> str:
    """The era's name of a graph."""
    prefix = ("token_" if shape.rows == 1 else "prompt_") if ERAS[recipe.era].prefixed_graphs else ""
    return f"{prefix}{shape}_{number}_of_{recipe.parts}"


def _encodings(source: Source, recipe: Recipe, table: np.ndarray) -> dict[str, EdgeEncoding]:
    """One encoding for each tensor name, the same in all variants."""
    if recipe.precision != "w4a16":
        return {}
    shape = StepShape(16, 16)
    models = [part_model(source, number, shape, "float32", "calibration") for number in range(1, recipe.parts + 1)]
    found = calibrate(models, shape, table, recipe.logits, recipe.caches)
    found[EMBEDDED] = found["inputs_embeds"]
    return {**found, "attention_mask": EdgeEncoding("uint16", recipe.mask_depth / 65535, 65535)}


def _model(
    source: Source, number: int, shape: StepShape, name: str, recipe: Recipe, encodings: Mapping[str, EdgeEncoding]
) -> onnx.ModelProto:
    inner = {"w4a16": "float32", "w4": "float16", "twin": "float32"}[recipe.precision]
    model = part_model(source, number, shape, inner, name)
    last = max(part.number for part in source.parts if part.layers)
    if number == last and shape.rows in recipe.kv_only_rows:
        drop_result(model)
    if recipe.head_weight is not None and source.parts[number - 1].kind is GraphKind.LMHEAD:
        weight = expose_weight(model, source.network.spec.vocab)
        (source.folder.parent / source.folder.stem / (recipe.head_weight or "unnamed.raw")).write_bytes(
            weight.tobytes()
        )
    if recipe.heads:
        model = split_heads(model, recipe.heads)
    model = encode_edges(model, encodings)
    hidden = source.network.spec.hidden
    if "windows" in recipe.beside:
        narrow = StepShape(shape.rows, min(WINDOW, shape.past))
        model = with_windows(model, part_model(source, number, narrow, inner, name))
    if "states" in recipe.beside:
        model = with_states(model, shape.rows, hidden)
    if "images" in recipe.beside:
        model = with_images(model, shape.rows, hidden)
    if "layers" in recipe.beside:
        model = with_layer_inputs(model, shape.rows, source.network.spec.layers, hidden)
    if recipe.scatter:
        model = scatter_edges(model, shape, recipe.index)
    if not recipe.same_hidden_names and number > 1:
        _rename_input(model, source.parts[number - 1].source, f"hidden_into_{number}")
    return model


def _rename_input(model: onnx.ModelProto, old: str, new: str) -> None:
    for value in model.graph.input:
        if value.name == old:
            value.name = new
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]


def describe(
    name: str, model: onnx.ModelProto, encodings: Mapping[str, EdgeEncoding], aliases: Mapping[str, str]
) -> BinaryGraph:
    """What a context binary of this model would say of itself. aliases: tensor name -> name of its encoding."""

    def tensor(value: onnx.ValueInfoProto) -> BinaryTensor:
        kind = value.type.tensor_type
        key = HEAD.sub("", value.name.replace("nativekvcache__", ""))
        known = encodings.get(aliases.get(key, key))
        encoding = QnnEncoding((known.scale,), (-known.zero_point,)) if known else None
        dtype = str(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        return BinaryTensor(value.name, dtype, tuple(dim.dim_value for dim in kind.shape.dim), 0, encoding)

    return BinaryGraph(name, tuple(map(tensor, model.graph.input)), tuple(map(tensor, model.graph.output)))


def add_forecast(dialog: dict[str, Any], folder: Path, spec: ModelSpec) -> None:
    """What self-speculation adds to a folder: its settings and a file of cached keys and values."""
    tokens = 16
    dialog["type"] = "ssd-q1"
    dialog["ssd-q1"] = {
        "version": 1,
        "ssd-version": 1,
        "forecast-token-count": FORECAST_IDS,
        "forecast-prefix": tokens,
        "forecast-prefix-name": "forecast-prefix",
        "branches": [3, 2],
        "n-streams": 1,
        "p-threshold": 0.0,
    }
    head = struct.pack("<IIBxHHH", 2 * spec.layers, 0xC0DE, 8, spec.kv_heads, spec.head_dim, tokens)
    path = folder / "forecast-prefix" / "kv-cache.primary.qnn-htp"
    path.parent.mkdir()
    size = 2 * spec.layers * spec.kv_heads * spec.head_dim * tokens
    path.write_bytes(head + np.random.default_rng(1).integers(100, 156, size).astype(np.uint8).tobytes())


def embedding_table(checkpoint: Path) -> np.ndarray:
    """float32 [V, H]."""
    name = f"{read_network(read_json(checkpoint / 'config.json'), 0).details.names.embedding}.weight"
    with SafetensorsCheckpoint(checkpoint) as weights:
        return np.asarray(weights.tensor(name, weights.shape(name)), np.float32)


def add_embedding(folder: Path, kind: str, table: np.ndarray) -> None:
    """What qai-hub-models 0.65 adds where graphs take embeddings: the table, and the section that names it."""
    section: dict[str, Any] = {"version": 1, "type": "lut", "lut-path": "embedding_weights.raw"}
    section |= {"size": table.shape[1], "datatype": kind}
    if kind == "float32":
        table.astype("<f4").tofile(folder / "embedding_weights.raw")
    else:
        scale = float(table.max() - table.min()) / 65535
        offset = round(float(table.min()) / scale)
        codes = np.clip(np.rint(table / scale) - offset, 0, 65535).astype("<u2")
        codes.tofile(folder / "embedding_weights.raw")
        section["quant-param"] = {"scale": scale, "offset": offset}
    path = folder / "genie_config.json"
    document = json.loads(path.read_text())
    document["dialog"]["embedding"] = section
    path.write_text(json.dumps(document, indent=1))


def write_texts(checkpoint: Path, folder: Path, recipe: Recipe, network: Network, binaries: tuple[str, ...]) -> None:
    """Everything but the binaries."""
    for name in TEXT_FILES:
        if (checkpoint / name).is_file():
            shutil.copyfile(checkpoint / name, folder / name)
    spec = network.spec
    config: dict[str, Any] = {
        "dialog": {
            "version": 1,
            "type": "basic",
            "max-num-tokens": 2048,
            "context": {
                "version": 1,
                "size": recipe.context_tokens,
                "n-vocab": spec.vocab,
                "bos-token": 0,
                "eos-token": 2,
            },
            "sampler": {"version": 1, "seed": 42, "temp": 0.8, "top-k": 40, "top-p": 0.95},
            "tokenizer": {"version": 1, "path": "tokenizer.json"},
            "engine": {
                "version": 1,
                "n-threads": 3,
                "backend": {
                    "version": 1,
                    "type": "QnnHtp",
                    "extensions": "htp_backend_ext_config.json",
                    "QnnHtp": {
                        "version": 1,
                        "use-mmap": True,
                        "spill-fill-bufsize": 0,
                        "mmap-budget": 0,
                        "poll": True,
                        "cpu-mask": "0xe0",
                        "kv-dim": spec.head_dim,
                        "pos-id-dim": spec.rope.rotary_dim // 2,
                        "rope-theta": int(spec.rope.theta),
                        "allow-async-init": False,
                    },
                },
                "model": {"version": 1, "type": "binary", "binary": {"version": 1, "ctx-bins": list(binaries)}},
            },
        }
    }
    extras = {"lm_head_weight": recipe.head_weight, "parts": recipe.order}
    if any(extras.values()):
        (folder / "hexserve.json").write_text(json.dumps({key: value for key, value in extras.items() if value}))
    if recipe.ssd:
        add_forecast(config["dialog"], folder, spec)
    (folder / "genie_config.json").write_text(json.dumps(config, indent=1))
    devices = [{"soc_model": 60, "dsp_arch": "v73", "cores": [{"core_id": 0, "perf_profile": "burst"}]}]
    (folder / "htp_backend_ext_config.json").write_text(json.dumps({"devices": devices}))
