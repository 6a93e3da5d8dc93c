"""The graph that reads a tile of an image: patches through an encoder, then a connector to rows of the text model.

Shapes: S pixels of a side, G patches of a side, P = G * G patches, D numbers of a patch, W of a row of the text model.
Definitions: transformers `Idefics3VisionTransformer` and `Idefics3Connector`, `InternVLVisionModel` and
`InternVLMultiModalProjector`, `SiglipVisionModel` and `Gemma3MultiModalProjector`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np

from engine.bundle.manifest import GraphKind, describe_file
from engine.bundle.variant import StepShape
from engine.bundle.vision import FEATURES, PIXEL_VALUES, PIXELS
from engine.compile.compilation import Compilation
from engine.compile.graphs.graph_builder import GraphBuilder
from engine.compile.graphs.native_vision import NativeWriter, SizedWriter, TowerWriter
from engine.compile.quantisation.weight_file import WeightFile
from engine.compile.sources.checkpoint import Checkpoint
from engine.compile.sources.text_files import load_tokenizer
from engine.errors import CompileError, UnsupportedModel
from engine.models.network import Activation
from engine.models.vision import read_vision
from engine.models.vision_network import (
    VISION_DATA,
    Encoder,
    NativeNetwork,
    TileForm,
    VisionFiles,
    VisionNetwork,
    patches_of,
    with_one_size,
)

CONNECTOR_EPSILON = 1e-5


def vision_stage(work: Compilation) -> None:
    """Write the graph of images beside those of the text, where there is one: of free sizes, or for an NPU of one."""
    if not work.network.reads_images:
        return
    network = vision_network(work)
    if network.spec.both_ways and network.spec.fixed and max(work.arguments.rows) < network.spec.tokens:
        most, wanted = max(work.arguments.rows), network.spec.tokens
        raise CompileError(f"--rows {most} is too few: an image of this model takes {wanted} rows of one step")
    work.progress.stage("vision", network.layers, "layers")
    work.graph_folder.mkdir(exist_ok=True)
    # Also beside integer graphs: the encoder has encodings of its own, which text does not tell.
    dtype = "float16" if network.spec.fixed else "float32"
    with WeightFile(work.graph_folder, VISION_DATA, dtype) as file:
        graph = vision_graph(network, work.checkpoint, file, work.network.spec.hidden, dtype, work.progress.advance)
    graph_spec = graph.save(work.graph_folder, "vision", GraphKind.IMAGE_ENCODER)
    work.vision, work.image_graph = network.spec, graph_spec if network.spec.fixed else None
    if not work.pipeline.graph_folder:
        work.files |= {VISION_DATA: file.entry, graph_spec.file: describe_file(work.graph_folder / graph_spec.file)}


def vision_network(work: Compilation) -> Encoder:
    """The encoder of the source, for an NPU of one size. CompileError, UnsupportedModel."""
    source = work.source
    network = read_vision(VisionFiles(source.config, source.processor(), load_tokenizer(work.folder).token_to_id))
    if network is None:
        raise UnsupportedModel("the checkpoint says nothing of how it reads images")
    return with_one_size(network, work.network.compiled_context) if work.arguments.is_npu else network


def vision_graph(
    network: Encoder, checkpoint: Checkpoint, file: WeightFile, width: int, dtype: str, advance: Callable[[int], None]
) -> GraphBuilder:
    """The graph of an encoder, of one size where its spec says so. width: of the text's rows."""
    fixed = network.spec.fixed is not None
    writer: TileWriter | NativeWriter
    if isinstance(network, NativeNetwork):
        graph = GraphBuilder(dtype, StepShape(patches_of(network), 0) if fixed else None)
        writer = (SizedWriter if fixed else NativeWriter)(graph, checkpoint, file, network)
    else:
        graph = GraphBuilder(dtype, StepShape(1, 0) if fixed else None)
        if network.newer_root and f"{network.newer_root}post_layernorm.weight" in checkpoint:
            network = replace(network, root=network.newer_root)
        writer = WRITERS[network.form](graph, checkpoint, file, network)
    writer.write(width, advance)
    return graph


class TileNames(NamedTuple):
    """Modules of a layer."""

    layers: str
    first_norm: str
    attention: str
    output: str
    second_norm: str


@dataclass(frozen=True, slots=True)
class TileWriter(TowerWriter):
    """Writes the graph of square tiles. has_bias: whether attention must have one."""

    names: ClassVar = TileNames("layers", "layer_norm1", "self_attn", "out_proj", "layer_norm2")
    has_bias: ClassVar = True
    network: VisionNetwork

    def write(self, width: int, advance: Callable[[int], None]) -> None:
        """pixels uint8 [1, 3, S, S], or pixel_values of them -> image_features [tokens, W]."""
        graph, network = self.graph, self.network
        side = network.spec.side
        if self.has_one_size:
            pixels = graph.add_input(PIXEL_VALUES, self.dtype, 1, 3, side, side)
        else:
            graph.add_input(PIXELS, "uint8", 1, 3, side, side)
            pixels = self.normalised(PIXELS, network.mean, network.std, (1, 3, 1, 1))
        x = self.embedded(pixels)
        for layer in range(network.layers):
            x = self.layer(x, layer)
            advance(1)
        graph.reshape(self.connected(x, width), network.spec.tokens, width, name=FEATURES)
        graph.add_output(FEATURES, self.dtype, network.spec.tokens, width)

    def embedded(self, pixels: str) -> str:
        """[1, 3, S, S] -> patches with their positions [1, P, D]."""
        network, name = self.network, f"{self.network.root}embeddings."
        table = self.stored(f"{name}position_embedding.weight", (network.grid**2, network.hidden))
        return self.graph.op("Add", [self.patches(pixels, f"{name}patch_embedding"), table])

    def patches(self, pixels: str, name: str) -> str:
        """[1, 3, S, S] -> [1, P, D]."""
        graph, network, patch, hidden = self.graph, self.network, self.network.patch, self.network.hidden
        stored = self.stored(f"{name}.weight", (hidden, 3, patch, patch)), self.stored(f"{name}.bias", (hidden,))
        found = graph.op("Conv", [pixels, *stored], strides=[patch, patch], kernel_shape=[patch, patch])
        return graph.transpose(graph.reshape(found, 1, hidden, network.grid**2), 0, 2, 1)

    def connected(self, x: str, width: int) -> str:
        """[1, P, D] -> [1, tokens, W]."""
        network = self.network
        x = self.shuffled(self.norm(x, f"{network.root}post_layernorm", network.hidden, network.epsilon))
        return self.linear(x, network.connector, network.hidden * network.shuffle**2, width, has_bias=False)

    def layer(self, x: str, index: int) -> str:
        """[1, P, D] -> the same shape: attention over all patches, then a feed-forward, each of its norm."""
        network, names = self.network, self.names
        hidden, epsilon, name = network.hidden, network.epsilon, f"{network.root}encoder.{names.layers}.{index}."
        inside = f"{name}{names.attention}"
        normed = self.norm(x, name + names.first_norm, hidden, epsilon)
        has_bias = self.has_bias or f"{inside}.q_proj.bias" in self.checkpoint
        taken = [self.linear(normed, f"{inside}.{side}_proj", hidden, hidden, has_bias) for side in "qkv"]
        mixed = self.attention(taken, network.heads, hidden)
        x = self.added(x, self.linear(mixed, f"{inside}.{names.output}", hidden, hidden), f"{name}lambda_1")
        normed = self.norm(x, name + names.second_norm, hidden, epsilon)
        inner = self.activated(self.linear(normed, f"{name}mlp.fc1", hidden, network.ffn), network.activation)
        return self.added(x, self.linear(inner, f"{name}mlp.fc2", network.ffn, hidden), f"{name}lambda_2")

    def added(self, x: str, grown: str, _: str) -> str:
        """x and what attention or feed-forward give. The last is the name of InternVL's scale."""
        return self.graph.op("Add", [x, grown])

    def shuffled(self, x: str) -> str:
        """[1, P, D] -> [1, tokens, D * shuffle ** 2]: squares of patches side by side, row by row."""
        graph, network = self.graph, self.network
        step, rows = network.shuffle, network.grid // network.shuffle
        together = graph.transpose(graph.reshape(x, rows, step, rows, step * network.hidden), 0, 2, 1, 3)
        return graph.reshape(together, 1, rows * rows, step * step * network.hidden)


@dataclass(frozen=True, slots=True)
class ClassTokenWriter(TileWriter):
    """The same with a row before the patches that sees and is seen, and goes before the connector; InternVL."""

    names: ClassVar = TileNames("layer", "layernorm_before", "attention", "projection_layer", "layernorm_after")
    has_bias: ClassVar = False

    def embedded(self, pixels: str) -> str:
        """[1, 3, S, S] -> [1, 1 + P, D]."""
        graph, network, name = self.graph, self.network, f"{self.network.root}embeddings."
        first = self.stored(f"{name}cls_token", (1, 1, network.hidden))
        rows = graph.op("Concat", [first, self.patches(pixels, f"{name}patch_embeddings.projection")], axis=1)
        table = self.stored(f"{name}position_embeddings", (1, network.grid**2 + 1, network.hidden))
        return graph.op("Add", [rows, table])

    def added(self, x: str, grown: str, scale: str) -> str:
        """What attention and feed-forward give is scaled before it is added."""
        return self.graph.op("Add", [x, self.graph.op("Mul", [grown, self.stored(scale, (self.network.hidden,))])])

    def connected(self, x: str, width: int) -> str:
        """[1, 1 + P, D] -> [1, tokens, W]."""
        network, name = self.network, self.network.connector
        x = self.shuffled(self.graph.slice(x, 1, network.grid**2 + 1, 1))
        inputs = network.hidden * network.shuffle**2
        normed = self.norm(x, f"{name}layer_norm", inputs, CONNECTOR_EPSILON)
        inner = self.activated(self.linear(normed, f"{name}linear_1", inputs, width), Activation.GELU)
        return self.linear(inner, f"{name}linear_2", width, width)


@dataclass(frozen=True, slots=True)
class PooledWriter(TileWriter):
    """SigLIP with means in the place of shuffled pixels; Gemma 3."""

    def connected(self, x: str, width: int) -> str:
        """[1, P, D] -> [1, tokens, W]: the mean of each square of patches, its norm with weights that begin at 1."""
        graph, network, name = self.graph, self.network, self.network.connector
        step, rows, hidden = network.shuffle, network.grid // network.shuffle, network.hidden
        x = self.norm(x, f"{network.root}post_layernorm", hidden, network.epsilon)
        apart = graph.reshape(x, rows, step, rows, step, hidden)
        means = graph.op("ReduceMean", [apart, graph.integers(1, 3)], keepdims=0)
        stored = f"{name}soft_emb_norm.weight"
        weight = graph.stored(self.file.add(stored, self.checkpoint.tensor(stored, (hidden,)) + np.float32(1)))
        rows_of_text = graph.reshape(means, 1, rows * rows, hidden)
        normed = graph.op("RMSNormalization", [rows_of_text, weight], axis=-1, epsilon=network.epsilon)
        return graph.op("MatMul", [normed, self.stored(f"{name}input_projection_weight", (hidden, width))])


WRITERS: dict[TileForm, type[TileWriter]] = {
    TileForm.SHUFFLED: TileWriter,
    TileForm.CLASS_TOKEN: ClassTokenWriter,
    TileForm.POOLED: PooledWriter,
}
