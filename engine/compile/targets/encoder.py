"""The compiler of encoders: which options it takes, what their bundle is for, its stages and their order."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from engine.bundle.encoder import PROJECTION
from engine.bundle.manifest import Manifest, describe_file
from engine.bundle.specs import ModelTask, PoolingKind, PoolingSpec, RerankKind, RerankSpec
from engine.bundle.variant import StepShape
from engine.bundle.weight_files import write_floats
from engine.compile.arguments import CompileArguments, Layout, QualityLevel, Split
from engine.compile.check.encoder_vectors import bundle_vectors, compare_vectors, parity_passages, reference_vectors
from engine.compile.check.parity import plain_cpu
from engine.compile.compilation import Compilation, Pipeline, finished, graphs_stage, hash_stage, packing
from engine.compile.graphs.encoder_graphs import build_encoder_graph, build_two_way_graph, encoder_part
from engine.compile.graphs.graph_builder import WrittenGraph
from engine.compile.graphs.lowering import FUSED, NPU
from engine.compile.graphs.pool import GraphPlan
from engine.compile.plan import MAX_ROWS, check_numbers
from engine.compile.progress import ProgressSink
from engine.compile.quantisation.linear_packer import LinearSource
from engine.compile.quantisation.methods.table import FOR_ENCODERS, is_exact, with_kept_floats
from engine.compile.quantisation.packed import PackedAttention, PackedEncoder, PackedNorm, PackedPart, PackedTowerLayer
from engine.compile.quantisation.packer import WeightPacker
from engine.compile.quantisation.weight_file import StoredTensor, WeightFile
from engine.compile.sources.checkpoint import Checkpoint, Float32, SafetensorsCheckpoint, read_optional_json
from engine.compile.sources.source import Source
from engine.compile.sources.task import MODULES, SentenceFiles, names_in, pooling_spec
from engine.compile.sources.text_files import load_tokenizer
from engine.compile.targets.measure import parity_stage, quality_stage
from engine.compile.targets.npu import SOURCES, binaries_stage
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief
from engine.isolation.machine import usable_memory
from engine.models.config_fields import ConfigFields
from engine.models.encoder_families import ENCODER_FAMILIES
from engine.models.encoders import architecture_of, read_encoder, read_length, read_pooling
from engine.models.network import EncoderDetails, Network
from engine.runtime.sessions import Provider
from engine.sources.publish import staged_folder


@dataclass(frozen=True, slots=True)
class EncoderPacker:
    """Writes an encoder's weights into one file."""

    packer: WeightPacker
    file: WeightFile

    def pack(self, details: EncoderDetails) -> PackedEncoder:
        places = details.positions  # None: positions turn the heads
        positions = None if places is None else self._rows("positions", places, details.table_rows)
        return PackedEncoder(
            self.packer.table(self.file),
            self._rows("token_types", details.token_types, details.spec.token_types),
            positions,
            self._norm("embedding_norm", details.embedding_norm),
            tuple(self._layer(layer, details.activation.matrices) for layer in range(self.packer.network.spec.layers)),
        )

    def _layer(self, layer: int, gates: int) -> PackedTowerLayer:
        spec, details, at = self.packer.network.spec, self.packer.network.details, f"layer_{layer}"
        names, hidden = details.names, spec.hidden

        def named(*modules: str) -> tuple[str, ...]:
            return tuple(module.format(layer=layer) for module in modules)

        scale = 1.0 / math.sqrt(spec.head_dim)
        qkv = LinearSource(named(*names.qkv), (hidden,) * 3, hidden, details.qkv_bias, hidden, scale)
        output = LinearSource(named(names.output), (hidden,), hidden, details.output_bias)
        up = LinearSource(named(*names.gate_up), (spec.ffn,) * gates, hidden, details.ffn_bias)
        down = LinearSource(named(names.down), (hidden,), spec.ffn, details.ffn_bias)
        own = PackedAttention(
            (self.packer.linear(self.file, self.file, f"{at}_qkv", qkv),),
            self.packer.linear(self.file, self.file, f"{at}_output", output),
            self._norm(f"{at}_attention_norm", *named(names.attention_norm)),
        )
        return PackedTowerLayer(
            own,
            self.packer.linear(self.file, self.file, f"{at}_up", up),
            self.packer.linear(self.file, self.file, f"{at}_down", down),
            self._norm(f"{at}_ffn_norm", *named(names.ffn_norm)),
        )

    def _norm(self, name: str, module: str) -> PackedNorm:
        return self.packer.layer_norm(self.file, name, module, self.packer.network.spec.hidden)

    def _rows(self, name: str, module: str, rows: int) -> StoredTensor:
        return self.file.add(
            name, self.packer.checkpoint.tensor(f"{module}.weight", (rows, self.packer.network.spec.hidden))
        )


def write_score_head(checkpoint: Checkpoint, network: Network, path: Path) -> None:
    """A layer [hidden, hidden] and its bias, then [1, hidden] and its bias."""
    encoder, hidden = network.encoder, network.spec.hidden
    assert encoder is not None and encoder.score_head is not None
    parts: list[Float32] = []
    for module, outputs in ((encoder.score_head.dense, hidden), (encoder.score_head.scores, 1)):
        parts.append(checkpoint.tensor(f"{module}.weight", (outputs, hidden)))
        parts.append(checkpoint.tensor(f"{module}.bias", (outputs,)))
    write_floats(path, *parts)


DENSE = "Dense"
IDENTITY = "Identity"  # the activation that leaves layers linear
MOST_OUTPUTS = 1 << 16
Float64 = NDArray[np.float64]
Layer = tuple[Float64, Float64]  # weight [X, inputs], bias [X]
STORED = ("dense_2.weight", "dense_3.weight")  # of GGUF files, without a bias


def folded_layers(files: SentenceFiles, checkpoint: Checkpoint, hidden: int) -> Layer | None:
    """The linear layers behind the pooling, one behind the other as one [X, H]; None where there are none.
    UnsupportedModel for an activation between them, CompileError for a layer that does not fit the one before."""
    folded: Layer | None = None
    for (kind, config), folder in zip(files.modules, files.folders, strict=True):
        if kind != DENSE:
            continue
        folded = _behind(folded, _layer(folder, config, hidden if folded is None else len(folded[0])))
    for name in STORED:
        if name in checkpoint:
            outputs = checkpoint.shape(name)[0]
            weight = checkpoint.tensor(name, (outputs, hidden if folded is None else len(folded[0])))
            folded = _behind(folded, (weight.astype(np.float64), np.zeros(outputs)))
    return folded


def _behind(first: Layer | None, second: Layer) -> Layer:
    weight, bias = second
    return second if first is None else (weight @ first[0], weight @ first[1] + bias)


def _layer(folder: Path, config: Mapping[str, object], inputs: int) -> Layer:
    fields = ConfigFields(config, f"{folder.name}/config.json")
    activation = fields.text("activation_function", "torch.nn.modules.activation.Tanh")
    if activation.rpartition(".")[2] != IDENTITY:
        raise UnsupportedModel(f"{folder.name}: activation {brief(activation)} is not supported (supported: Identity)")
    if fields.integer("in_features", 1, MOST_OUTPUTS) != inputs:
        raise CompileError(f"{folder.name}/config.json: in_features must be {inputs}, the width of what comes before")
    outputs = fields.integer("out_features", 1, MOST_OUTPUTS)
    with SafetensorsCheckpoint(folder) as tensors:
        weight = tensors.tensor("linear.weight", (outputs, inputs))
        has_bias = fields.flag("bias", True)
        bias = tensors.tensor("linear.bias", (outputs,)) if has_bias else np.zeros(outputs, np.float32)
    return weight.astype(np.float64), bias.astype(np.float64)


DEFAULT_ROWS = (32, 128, 512)
LONGEST_DEFAULT = 2048  # rows of a variant that nobody asked for; attention grows with their square
# Options of graphs with caches, or of heads that give logits.
FOREIGN = (
    *("context", "same_past", "whole_context", "split", "kv", "head", "calibration"),
    *("kv_update", "decode_slots", "lora", "amx"),
)


def check_encoder_arguments(arguments: CompileArguments) -> None:
    """CompileError naming the option and its limit."""
    usual = {field.name: field.default for field in fields(CompileArguments)}
    foreign = [f"--{name.replace('_', '-')}" for name in FOREIGN if getattr(arguments, name) != usual[name]]
    if arguments.layout not in (None, Layout.POOL):
        foreign.append(f"--layout {arguments.layout}")
    if arguments.quality not in (None, QualityLevel.FAST):
        foreign.append(f"--quality {arguments.quality}")
    if foreign:
        raise CompileError(f"{foreign[0]} is for models that generate; this checkpoint is an encoder")
    taken, target = FOR_ENCODERS[arguments.is_npu], f"--target {arguments.target}"
    if arguments.quant not in taken:
        raise CompileError(f"an encoder for {target} takes --quant {', '.join(taken)}, not {arguments.quant}")
    check_numbers(arguments)


def encoder_shapes(arguments: CompileArguments, longest: int) -> tuple[StepShape, ...]:
    """One for each number of rows. longest: most tokens of one text."""
    rows = arguments.rows
    if not rows:
        own = min(longest, LONGEST_DEFAULT, MAX_ROWS)
        rows = DEFAULT_ROWS if own <= DEFAULT_ROWS[-1] else (*DEFAULT_ROWS, own)
    return tuple(StepShape(count, 0) for count in sorted(set(rows)))


LENGTH_FILES = ("sentence_bert_config.json", "sentence_roberta_config.json")
KNOWN_MODULES = ("Transformer", "Pooling", DENSE, "Normalize")


def resolve_encoder_task(arguments: CompileArguments, config: Mapping[str, object]) -> CompileArguments:
    """The arguments with the task that the architecture tells. CompileError when another one was asked for."""
    architecture = architecture_of(config)
    assert architecture is not None, "asked of a checkpoint that is no encoder"
    family = ENCODER_FAMILIES.get(architecture)
    task = ModelTask.RERANK if family is not None and family.modules.score_head is not None else ModelTask.EMBED
    if arguments.task not in (None, task):
        raise CompileError(f"--task {arguments.task} is not what {architecture} is for: it takes --task {task}")
    return replace(arguments, task=task)


def longest_text(folder: Path, asked: int) -> int:
    """Most tokens of a text, by the files and by the option; 0 = neither says."""
    lengths = (read_length(ConfigFields(read_optional_json(folder / name), name)) for name in LENGTH_FILES)
    return min(filter(None, (asked, *lengths)), default=0)


def encoder_pooling(tokenizer: Tokenizer, files: SentenceFiles, details: EncoderDetails, outputs: int) -> PoolingSpec:
    """As the files say; without them the mean of the rows, of length 1. UnsupportedModel for other modules."""
    names = [name for name, _ in files.modules]
    if unknown := [name for name in names if name not in KNOWN_MODULES]:
        raise UnsupportedModel(f"{MODULES}: module {brief(unknown[0])} is not supported, it would change the vectors")
    if names != sorted(names, key=KNOWN_MODULES.index):
        raise UnsupportedModel(f"{MODULES}: modules are supported in the order {', '.join(KNOWN_MODULES)}")
    config = files.config_of("Pooling")
    kind = PoolingKind.MEAN if config is None else read_pooling(ConfigFields(config, "the pooling's config.json"))
    return pooling_spec(tokenizer, files, kind, outputs, dict(details.prompts))


def pair_of(tokenizer: Tokenizer, token_types: int) -> RerankSpec:
    """How query and document are put together. CompileError when the tokenizer writes no pair."""
    one, other = (tuple(tokenizer.encode(text, add_special_tokens=False).ids) for text in ("a", "b"))
    encoded = tokenizer.encode("a", "b", add_special_tokens=True)
    whole, types = tuple(encoded.ids), tuple(encoded.type_ids)
    first = whole.index(one[0]) if one and one[0] in whole else -1
    second = whole.index(other[0], first + len(one)) if other and other[0] in whole[first + len(one) :] else -1
    if first < 0 or second < 0:
        raise CompileError("the tokenizer does not put two texts together: no pair could be scored")
    has_types = token_types > 1 and types[second] == 1
    if has_types and types != (0,) * second + (1,) * (len(whole) - second):
        raise CompileError("the tokenizer gives token types that are not 0 up to the second text and 1 from there on")
    return RerankSpec(
        RerankKind.PAIR,
        begin_ids=whole[:first],
        middle_ids=whole[first + len(one) : second],
        end_ids=whole[second + len(other) :],
        has_types=has_types,
    )


LEAST_COSINE = 0.9999  # of an fp32 bundle
PARITY_TOKENS = 48  # unless --parity-tokens says otherwise


def encoder_text_stage(work: Compilation) -> None:
    """The tokenizer, and how vectors are made or pairs are written."""
    encoder, network = work.network.encoder, work.network
    assert encoder is not None
    work.progress.stage("text", 1, "files")
    text = work.source.write_text(work.folder, network.spec.vocab)
    work.text = msgspec.structs.replace(text, stop_ids=())  # nothing is generated that could end
    tokenizer = load_tokenizer(work.folder)
    if work.arguments.task is ModelTask.EMBED:
        files = told_by(work.source, work.arguments.source)
        layer = folded_layers(files, work.checkpoint, network.spec.hidden)
        outputs = network.spec.hidden if layer is None else len(layer[0])
        work.pooling = encoder_pooling(tokenizer, files, encoder, outputs)
        if layer is not None:
            write_floats(work.folder / PROJECTION, *layer)  # the weight [X, H], then the bias [X]
            work.files[PROJECTION] = describe_file(work.folder / PROJECTION)
            spec = msgspec.structs.replace(encoder.spec, projection=PROJECTION)
            work.network = replace(network, encoder=replace(encoder, spec=spec))
    else:
        work.rerank = pair_of(tokenizer, encoder.spec.token_types)
    work.progress.advance(1)


def encoder_weights_stage(work: Compilation) -> None:
    """Quantise and write the weights, and the score head where there is one."""
    encoder = work.network.encoder
    assert encoder is not None
    part, is_two_way = work.parts[0], work.network.details.sees_both_ways
    with packing(work) as packer:
        with WeightFile(work.graph_folder, part.data_file, work.pipeline.dtype) as file:
            whole = EncoderPacker(packer, file)
            work.packed_encoder = packer.pack(part, file, file) if is_two_way else whole.pack(encoder)
        if not work.pipeline.graph_folder:
            work.files[part.data_file] = file.entry
        if encoder.spec.score_head:
            path = work.folder / encoder.spec.score_head
            write_score_head(work.checkpoint, work.network, path)
            work.files[path.name] = describe_file(path)


def encoder_graph(work: Compilation, plan: GraphPlan) -> WrittenGraph:
    """The graph of one number of rows."""
    packed, how = work.packed_encoder, (work.network, work.pipeline.lowering, work.pipeline.dtype)
    assert packed is not None
    if isinstance(packed, PackedPart):
        return build_two_way_graph(plan, packed, *how).written(plan.name)
    return build_encoder_graph(plan, packed, *how).written(plan.name)


def measure_encoder(work: Compilation, manifest: Manifest, provider: Provider) -> None:
    """Of one step; a float bundle that differs is a bug, so it fails."""
    rows = [shape.rows for shape in work.shapes]
    most = max(rows) if provider is plain_cpu() else min(rows)
    texts = parity_passages(work.folder, work.network, work.arguments.parity_tokens or PARITY_TOKENS, most)
    count = sum(map(len, texts))
    work.progress.stage("parity", count, "tokens")
    kind = work.pooling.kind if work.pooling is not None else PoolingKind.CLS
    expected = reference_vectors(work.checkpoint, work.network, texts, kind)
    found = bundle_vectors(work.folder, manifest, texts, kind, provider)
    work.progress.advance(count)
    work.parity = {"tokens": float(count), "texts": float(len(texts))} | compare_vectors(expected, found)
    if is_exact(work.arguments) and work.parity["cosine"] < LEAST_COSINE:
        raise CompileError(
            f"the compiled graphs differ from the checkpoint: the cosine of a vector is {work.parity['cosine']}, "
            f"{LEAST_COSINE} is the least that an fp32 bundle may have"
        )


MADE = (encoder_text_stage, encoder_weights_stage, partial(graphs_stage, write=encoder_graph))
CPU_STAGES = (*MADE, hash_stage, partial(parity_stage, measure=measure_encoder))
NPU_STAGES = (*MADE, binaries_stage, partial(quality_stage, measure=measure_encoder), hash_stage)
ENCODER_CPU = Pipeline(CPU_STAGES, FUSED, "float32", "float32")
ENCODER_NPU = Pipeline(NPU_STAGES, NPU, "float16", "float16", SOURCES)


def told_by(source: Source, path: Path) -> SentenceFiles:
    """How vectors are made: as the folder's files say, or as a GGUF file does, whose vectors have length 1."""
    mode = source.config.get("pooling_mode")
    if mode is None:
        return SentenceFiles.read(path)
    return SentenceFiles((("Pooling", {"pooling_mode": mode}), ("Normalize", {})), folders=(path, path))


def compile_encoder(arguments: CompileArguments, source: Source, progress: ProgressSink) -> Manifest:
    """Compile an encoder's Hugging Face folder or GGUF file into a bundle folder and return its manifest. Raises
    UnsupportedModel or CompileError; then nothing is left at the output."""
    check_encoder_arguments(arguments)
    arguments = with_kept_floats(arguments, source.float_bytes(), usable_memory())
    arguments = replace(arguments, layout=Layout.POOL, split=Split.NONE)  # for stages shared with other models
    arguments = resolve_encoder_task(arguments, source.config)
    longest = longest_text(arguments.source, arguments.max_context)
    with source.tensors() as checkpoint:
        network = names_in(checkpoint, read_encoder(source.config, checkpoint.__contains__, longest))
        if arguments.is_npu and network.details.sees_both_ways:
            raise UnsupportedModel(f"{network.spec.family} is not supported for --target {arguments.target}, only cpu")
        shapes = encoder_shapes(arguments, network.compiled_context)
        network = replace(network, compiled_context=min(network.compiled_context, shapes[-1].rows))
        pipeline, parts = ENCODER_NPU if arguments.is_npu else ENCODER_CPU, (encoder_part(network),)
        with staged_folder(arguments.output, arguments.force) as folder:
            work = Compilation(arguments, progress, pipeline, source, checkpoint, network, shapes, parts, folder)
            return finished(work)
