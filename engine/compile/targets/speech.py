"""The compiler of Whisper: which options it takes, how its weights are packed, its graphs and its manifest."""

import math
import shutil
from dataclasses import dataclass, fields
from pathlib import Path

import msgspec

from engine.bundle.manifest import GraphSpec, Manifest, NpuSpec, TextSpec, describe_file, save_manifest
from engine.bundle.specs import ModelTask, SpeechSpec
from engine.bundle.speech import check_speech
from engine.compile.arguments import CompileArguments, QualityLevel
from engine.compile.compilation import manifest_of, overflow_refused, summary
from engine.compile.graphs import speech as graphs_of_speech
from engine.compile.graphs.speech import HALF, PackedSpeech
from engine.compile.plan import check_numbers
from engine.compile.progress import ProgressSink
from engine.compile.quantisation.linear_packer import LinearSource
from engine.compile.quantisation.methods.table import FOR_SPEECH, hearing_method, wide_method
from engine.compile.quantisation.packed import PackedAttention, PackedLinear, PackedNorm, PackedTowerLayer
from engine.compile.quantisation.packer import WeightPacker
from engine.compile.quantisation.weight_file import StoredTensor, WeightFile
from engine.compile.sources.speech.source import KEY_BIAS, NEEDLESS, SpeechSource, open_speech
from engine.compile.targets.npu import NPU_TARGETS, SOURCES, make_binary, save_chain, told_by
from engine.errors import CompileError, UnsupportedModel
from engine.models.speech import EMBEDDING, SpeechNetwork
from engine.sources.publish import staged_folder

WEIGHTS = "weights.bin"
NPU_CONTEXT = 200  # tokens of a text, in the graphs of Qualcomm AI Hub
HEARD = ("encoder_attn.k_proj", "encoder_attn.v_proj")
NOT_GENIE = "Genie writes no speech down"
OWN = (
    *("source", "output", "quant", "name", "force", "task", "quality", "embedding_bits", "block", "target"),
    "share_weights",
)


def check_speech_arguments(arguments: CompileArguments) -> None:
    """CompileError naming the option and its limit."""
    for field in fields(CompileArguments):
        if field.name not in OWN and getattr(arguments, field.name) != field.default:
            raise CompileError(f"--{field.name.replace('_', '-')} is not for models that write speech down")
    if arguments.task not in (None, ModelTask.TRANSCRIBE):
        raise CompileError(f"--task {arguments.task} is not what a Whisper is for: it takes --task transcribe")
    if arguments.quality not in (None, QualityLevel.FAST):
        raise CompileError(f"--quality {arguments.quality} is not for models that write speech down")
    taken = FOR_SPEECH[arguments.is_npu]
    if arguments.quant not in taken:
        raise CompileError(
            f"a model of speech for --target {arguments.target} takes --quant {', '.join(taken)}, not {arguments.quant}"
        )
    check_numbers(arguments)


def compile_speech(arguments: CompileArguments, progress: ProgressSink) -> Manifest:
    """Compile a Whisper into a bundle folder and return its manifest. Raises UnsupportedModel or CompileError; then
    nothing is left at the output."""
    check_speech_arguments(arguments)
    with open_speech(arguments.source) as source, staged_folder(arguments.output, arguments.force) as folder:
        numbers = (name for name in source.checkpoint.unused() if name not in NEEDLESS and not name.endswith(KEY_BIAS))
        size = sum(math.prod(source.checkpoint.shape(name)) for name in numbers)  # parameters of a Whisper's own
        manifest = _written(arguments, source, folder, progress)
        manifest = msgspec.structs.replace(manifest, model=msgspec.structs.replace(manifest.model, parameters=size))
        check_speech(manifest)
        save_manifest(folder, manifest)
    progress.note(summary(manifest))
    return manifest


def _written(arguments: CompileArguments, source: SpeechSource, folder: Path, progress: ProgressSink) -> Manifest:
    network, checkpoint = source.network, source.checkpoint
    text, spec = source.write_text(folder)
    sources = folder / SOURCES if arguments.is_npu else folder
    sources.mkdir(exist_ok=True)
    progress.stage(f"weights ({arguments.quant})", checkpoint.total_bytes(), "B")
    dtype = HALF if arguments.is_npu else graphs_of_speech.DTYPE
    with overflow_refused(arguments.quant), WeightFile(sources, WEIGHTS, dtype) as file:
        packer = WeightPacker(checkpoint, network.decoder, arguments, progress.advance)
        packed = SpeechPacker(network, packer, file).pack()
    if left := [name for name in checkpoint.unused() if name not in NEEDLESS]:
        raise UnsupportedModel(f"the checkpoint has tensor {left[0]}, which whisper does not use")
    if arguments.is_npu:
        return _for_npu(arguments, source, packed, (text, spec), folder, progress)
    progress.stage("graphs", 3, "graphs")
    writers = [graphs_of_speech.write_encoder, graphs_of_speech.write_decoder, graphs_of_speech.write_alignment]
    graphs = [write(packed, network, spec, folder) for write in writers[: 3 if spec.alignment else 2]]
    progress.advance(3)
    files = {WEIGHTS: file.entry}
    files |= {path.name: describe_file(path) for path in sorted(folder.iterdir()) if path.name != WEIGHTS}
    manifest = manifest_of(arguments, network.decoder, text, graphs, files)
    return msgspec.structs.replace(manifest, task=ModelTask.TRANSCRIBE, speech=spec)


def _for_npu(
    arguments: CompileArguments,
    source: SpeechSource,
    packed: PackedSpeech,
    told: tuple[TextSpec, SpeechSpec],
    folder: Path,
    progress: ProgressSink,
) -> Manifest:
    """Both graphs as context binaries, named as Qualcomm AI Hub names them. Nothing in them tells when words are said.
    told: text and special tokens. The sources of the binaries are removed."""
    network, sources = source.network, folder / SOURCES
    context = min(NPU_CONTEXT, network.decoder.compiled_context)
    progress.stage("context binaries", 2, "graphs")
    graphs, sdk = list[GraphSpec](), ""
    binaries, chains = dict[str, tuple[str, ...]](), dict[str, tuple[tuple[str, str], ...]]()
    encoder = graphs_of_speech.write_npu_encoder(packed, network, sources)
    for spec in (encoder, graphs_of_speech.write_npu_decoder(packed, network, context - 1, sources)):
        file = f"{spec.name}.bin"
        node = make_binary(sources, [spec.name], folder / file, arguments.target)[spec.name]
        graphs.append(save_chain(spec.name, [(spec, node)], 1, 1, folder))
        binaries[file], chains[spec.name], sdk = (node.name,), ((file, node.name),), told_by(node, "ep_sdk_version")
        progress.advance(1)
    shutil.rmtree(sources)
    files = {path.name: describe_file(path) for path in sorted(folder.iterdir())}
    chip = NPU_TARGETS[arguments.target]
    return msgspec.structs.replace(
        manifest_of(arguments, network.decoder, told[0], graphs, files),
        task=ModelTask.TRANSCRIBE,
        speech=msgspec.structs.replace(told[1], alignment=()),
        kv_dtype=HALF,
        max_context=context,
        npu=NpuSpec(chip.soc_model, chip.htp_arch, binaries, chains, sdk, not_genie=NOT_GENIE),
    )


@dataclass(frozen=True, slots=True)
class SpeechPacker:
    """Writes all weights into one file."""

    network: SpeechNetwork
    packer: WeightPacker
    file: WeightFile

    @property
    def _hidden(self) -> int:
        return self.network.decoder.spec.hidden

    def pack(self) -> PackedSpeech:
        network, spec, hidden = self.network, self.network.decoder.spec, self._hidden
        inputs = ((hidden, network.mels, 3), (hidden, hidden, 3))
        convolutions = [
            (
                self.file.add(f"{name}_weight", self.packer.checkpoint.tensor(f"model.encoder.{name}.weight", shape)),
                self.file.add(f"{name}_bias", self.packer.checkpoint.tensor(f"model.encoder.{name}.bias", (hidden,))),
            )
            for name, shape in zip(("conv1", "conv2"), inputs, strict=True)
        ]
        head = LinearSource((EMBEDDING,), (spec.vocab,), hidden)
        return PackedSpeech(
            convolutions=tuple(convolutions),
            heard_positions=self._positions("encoder", network.positions),
            encoder=tuple(self._layer("encoder", index) for index in range(network.encoder_layers)),
            encoder_norm=self._norm("encoder_norm", "model.encoder.layer_norm"),
            table=self.packer.table(self.file),
            positions=self._positions("decoder", network.decoder.compiled_context),
            decoder=tuple(self._layer("decoder", index) for index in range(spec.layers)),
            norm=self._norm("norm", "model.decoder.layer_norm"),
            head=self.packer.linear(self.file, self.file, "head", head, wide_method(self.packer.arguments)),
        )

    def _layer(self, half: str, index: int) -> PackedTowerLayer:
        is_decoder, at, name = half == "decoder", f"model.{half}.layers.{index}", f"{half}_{index}"
        ffn = self.network.decoder.spec.ffn if is_decoder else self.network.encoder_ffn
        heads = self.network.decoder.spec.heads if is_decoder else self.network.encoder_heads
        own = self._attention(f"{name}_own", f"{at}.self_attn", (("q_proj", "k_proj", "v_proj"),), heads)
        stacks = ("q_proj",), ("k_proj", "v_proj")
        heard = self._attention(f"{name}_heard", f"{at}.encoder_attn", stacks, heads) if is_decoder else None
        return PackedTowerLayer(
            own,
            ffn_norm=self._norm(f"{name}_ffn_norm", f"{at}.final_layer_norm"),
            up=self._linear(f"{name}_up", LinearSource((f"{at}.fc1",), (ffn,), self._hidden, has_bias=True)),
            down=self._linear(f"{name}_down", LinearSource((f"{at}.fc2",), (self._hidden,), ffn, has_bias=True)),
            heard=heard,
        )

    def _attention(self, name: str, at: str, stacks: tuple[tuple[str, ...], ...], heads: int) -> PackedAttention:
        """The first stack begins with the query, which carries the scale of the scores."""
        hidden, scale, inputs = self._hidden, 1.0 / math.sqrt(self._hidden // heads), []
        for number, stack in enumerate(stacks):
            modules, scaled = tuple(f"{at}.{part}" for part in stack), hidden if number == 0 else 0
            stacked = LinearSource(modules, (hidden,) * len(stack), hidden, True, scaled, scale)
            inputs.append(self._linear(f"{name}_{number}", stacked))
        output = self._linear(f"{name}_output", LinearSource((f"{at}.out_proj",), (hidden,), hidden, has_bias=True))
        return PackedAttention(tuple(inputs), output, self._norm(f"{name}_norm", f"{at}_layer_norm"))

    def _linear(self, name: str, source: LinearSource) -> PackedLinear:
        hears = all(module.startswith("model.encoder.") or module.endswith(HEARD) for module in source.names)
        method = hearing_method(self.packer.arguments) if hears else None
        return self.packer.linear(self.file, self.file, name, source, method)

    def _norm(self, name: str, module: str) -> PackedNorm:
        return self.packer.layer_norm(self.file, name, module, self._hidden)

    def _positions(self, half: str, rows: int) -> StoredTensor:
        table = self.packer.checkpoint.tensor(f"model.{half}.embed_positions.weight", (rows, self._hidden))
        return self.file.add(f"{half}_positions", table)
