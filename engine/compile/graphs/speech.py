"""The graphs of a Whisper: an encoder, a decoder over caches, and the decoder once more to see what it listens to.

Both halves norm what goes into attention and feed-forward (pre-norm). Shapes: B sequences, N tokens of each, T
positions of the encoder, H heads, D numbers of a head, P places of the self cache.
"""

from dataclasses import dataclass
from pathlib import Path

from engine.bundle.manifest import GraphKind, GraphSpec
from engine.bundle.specs import SpeechSpec
from engine.bundle.speech import (
    ALIGNMENT,
    FEATURES,
    LAST_PLACES,
    POSITIONS,
    TOTAL,
    cross_name,
    graph_forms,
    self_name,
)
from engine.bundle.tensors import IDS, LOGITS, MASK
from engine.compile.graphs.embedding import embed
from engine.compile.graphs.graph_builder import CONTRIB, GraphBuilder
from engine.compile.graphs.lowering import linear
from engine.compile.quantisation.packed import PackedLinear, PackedNorm, PackedTable
from engine.compile.quantisation.weight_file import StoredTensor
from engine.models.network import Network
from engine.models.speech import EPSILON, SpeechNetwork

DTYPE = "float32"
ROW, KEY = [0, 2, 1, 3], [0, 2, 3, 1]  # [B, N, H, D] -> [B, H, N, D] and [B, H, D, N]
COPIED = 0  # a dimension that Reshape takes from its input


@dataclass(frozen=True, slots=True)
class PackedAttention:
    """query, key and value are one layer where a row attends to its own text; norm: of what goes in."""

    norm: PackedNorm
    inputs: tuple[PackedLinear, ...]
    output: PackedLinear


@dataclass(frozen=True, slots=True)
class PackedSpeechLayer:
    """heard: attention to what the encoder gives, None in the encoder; its inputs: the query, then keys and values."""

    own: PackedAttention
    heard: PackedAttention | None
    ffn_norm: PackedNorm
    up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True, slots=True)
class PackedSpeech:
    """Everything; convolutions are (weight, bias) and positions [T, hidden] and [P, hidden]."""

    convolutions: tuple[tuple[StoredTensor, StoredTensor], ...]
    heard_positions: StoredTensor
    encoder: tuple[PackedSpeechLayer, ...]
    encoder_norm: PackedNorm
    table: PackedTable
    positions: StoredTensor
    decoder: tuple[PackedSpeechLayer, ...]
    norm: PackedNorm
    head: PackedLinear


def _declared(network: SpeechNetwork, spec: SpeechSpec, kind: GraphKind) -> "SpeechWriter":
    """Of a graph of that kind, with its inputs and outputs."""
    writer, decoder = SpeechWriter(GraphBuilder(DTYPE, None), network.decoder), network.decoder
    writer.graph.declare(*graph_forms(decoder.spec, spec, decoder.compiled_context, kind))
    return writer


def write_encoder(packed: PackedSpeech, network: SpeechNetwork, spec: SpeechSpec, folder: Path) -> GraphSpec:
    """Frames of one window -> keys and values of every layer of the decoder."""
    writer = _declared(network, spec, GraphKind.SPEECH_ENCODER)
    x = writer.frames(packed)
    for layer in packed.encoder:
        x = writer.encoder_layer(x, layer, network.encoder_heads)
    x = writer.norm(x, packed.encoder_norm)
    for index, layer in enumerate(packed.decoder):
        key, value = writer.cross(x, layer)
        writer.heads(key, KEY, name=cross_name("k", index))
        writer.heads(value, ROW, name=cross_name("v", index))
    return writer.graph.save(folder, "encoder", GraphKind.SPEECH_ENCODER)


def write_decoder(packed: PackedSpeech, network: SpeechNetwork, spec: SpeechSpec, folder: Path) -> GraphSpec:
    """New tokens of several sequences over their caches -> logits of the last one of each, and keys and values."""
    writer = _declared(network, spec, GraphKind.SPEECH_DECODER)
    graph, x = writer.graph, writer.embedded(packed)
    for index, layer in enumerate(packed.decoder):
        x = writer.cached_attention(x, layer, index)
        x, _ = writer.heard_attention(x, layer, index)
        x = writer.feed_forward(x, layer)
    last = graph.op("Slice", [x, graph.integers(-1), graph.integers(2**31), graph.integers(1)])
    logits = linear(graph, writer.norm(last, packed.norm), packed.head)
    graph.op("Identity", [logits], name=LOGITS)
    return graph.save(folder, "decoder", GraphKind.SPEECH_DECODER)


def write_alignment(packed: PackedSpeech, network: SpeechNetwork, spec: SpeechSpec, folder: Path) -> GraphSpec:
    """A whole text -> what some heads make of each position of the encoder, before the softmax [B, A, N, T]."""
    writer = _declared(network, spec, GraphKind.SPEECH_ALIGNMENT)
    graph, x = writer.graph, writer.embedded(packed)
    scores: dict[tuple[int, int], str] = {}
    for index, layer in enumerate(packed.decoder):
        x = writer.own_attention(x, layer)
        x, weights = writer.heard_attention(x, layer, index)
        for of_layer, head in spec.alignment:
            if of_layer == index:
                taken = [weights, *(graph.integers(number) for number in (head, head + 1, 1))]
                scores[index, head] = graph.op("Slice", taken)
        x = writer.feed_forward(x, layer)
    graph.op("Concat", [scores[pair] for pair in spec.alignment], name=ALIGNMENT, axis=1)
    return graph.save(folder, "alignment", GraphKind.SPEECH_ALIGNMENT)


@dataclass(frozen=True, slots=True)
class SpeechWriter:
    """Writes the nodes of one graph."""

    graph: GraphBuilder
    network: Network

    def frames(self, packed: PackedSpeech) -> str:
        """What the encoder's layers begin with [1, T, hidden]."""
        graph, x = self.graph, FEATURES
        for (weight, bias), stride in zip(packed.convolutions, (1, 2), strict=True):
            inputs = [x, graph.parameter(weight), graph.parameter(bias)]
            x = graph.op("Gelu", [graph.op("Conv", inputs, kernel_shape=[3], pads=[1, 1], strides=[stride])])
        x = graph.op("Transpose", [x], perm=[0, 2, 1])
        return graph.op("Add", [x, graph.parameter(packed.heard_positions)])

    def cross(self, x: str, layer: PackedSpeechLayer) -> list[str]:
        """Keys and values of what was heard for a layer of the decoder, each [1, T, hidden]."""
        graph, hidden = self.graph, self.network.spec.hidden
        assert layer.heard is not None
        pair = linear(graph, x, layer.heard.inputs[1])
        return graph.op_many("Split", [pair, graph.integers(hidden, hidden)], 2, axis=-1)

    def embedded(self, packed: PackedSpeech) -> str:
        """Tokens and positions [B, N, hidden]."""
        graph = self.graph
        places = graph.op("Gather", [graph.parameter(packed.positions), POSITIONS], axis=0)
        return graph.op("Add", [embed(graph, IDS, packed.table), places])

    def parts(self, x: str, layer: PackedSpeechLayer) -> list[str]:
        """Queries, keys and values of rows that see their own kind, each [B, N, hidden]."""
        graph, hidden = self.graph, self.network.spec.hidden
        stacked = linear(graph, self.norm(x, layer.own.norm), layer.own.inputs[0])
        return graph.op_many("Split", [stacked, graph.integers(hidden, hidden, hidden)], 3, axis=-1)

    def encoder_layer(self, x: str, layer: PackedSpeechLayer, heads: int) -> str:
        """x [1, T, hidden] -> the same shape; every row sees all of them."""
        graph, parts = self.graph, self.parts(x, layer)
        mixed = graph.op("MultiHeadAttention", parts, domain=CONTRIB, num_heads=heads, scale=1.0)
        x = graph.op("Add", [x, linear(graph, mixed, layer.own.output)])
        return self.feed_forward(x, layer)

    def cached_attention(self, x: str, layer: PackedSpeechLayer, index: int) -> str:
        """Each token over its text's cache, which the operator writes new keys and values into where it lies."""
        graph, heads = self.graph, self.network.spec.heads
        caches = [self_name(side, index, "in") for side in ("k", "v")]
        inputs = [*self.parts(x, layer), *caches, LAST_PLACES, TOTAL]
        outputs = [f"own_{index}", *(self_name(side, index, "out") for side in ("k", "v"))]
        counts = {"num_heads": heads, "kv_num_heads": heads}
        mixed, *_ = graph.node("GroupQueryAttention", inputs, outputs, CONTRIB, scale=1.0, **counts)
        return graph.op("Add", [x, linear(graph, mixed, layer.own.output)])

    def own_attention(self, x: str, layer: PackedSpeechLayer) -> str:
        """Each token over those of its text, all of them new."""
        graph, (query, key, value) = self.graph, self.parts(x, layer)
        query, key, value = (self.heads(part, perm) for part, perm in ((query, ROW), (key, KEY), (value, ROW)))
        scores = graph.op("Add", [graph.op("MatMul", [query, key]), MASK])
        mixed = graph.op("MatMul", [graph.op("Softmax", [scores], axis=-1), value])
        return self.joined(x, mixed, layer.own.output)

    def heard_attention(self, x: str, layer: PackedSpeechLayer, index: int) -> tuple[str, str]:
        """Each token over all of what was heard; the new x, and the scores [B, H, N, T]."""
        graph, heard = self.graph, layer.heard
        assert heard is not None
        query = self.heads(linear(graph, self.norm(x, heard.norm), heard.inputs[0]), ROW)
        scores = graph.op("MatMul", [query, cross_name("k", index)])
        weights = graph.op("Softmax", [scores], axis=-1)
        return self.joined(x, graph.op("MatMul", [weights, cross_name("v", index)]), heard.output), scores

    def feed_forward(self, x: str, layer: PackedSpeechLayer) -> str:
        """x [B, N, hidden] -> the same shape."""
        graph = self.graph
        inner = graph.op("Gelu", [linear(graph, self.norm(x, layer.ffn_norm), layer.up)])
        return graph.op("Add", [x, linear(graph, inner, layer.down)])

    def heads(self, x: str, perm: list[int], name: str = "", count: int = 0) -> str:
        """[B, N, hidden] -> [B, N, H, D], turned. count: H where it is not the decoder's."""
        spec, heads = self.network.spec, count or self.network.spec.heads
        shape = self.graph.integers(COPIED, COPIED, heads, spec.hidden // heads)
        return self.graph.op("Transpose", [self.graph.op("Reshape", [x, shape])], name=name, perm=perm)

    def norm(self, x: str, packed: PackedNorm) -> str:
        weight, bias = self.graph.parameter(packed.weight), self.graph.parameter(packed.bias)
        return self.graph.op("LayerNormalization", [x, weight, bias], axis=-1, epsilon=EPSILON)

    def joined(self, x: str, mixed: str, output: PackedLinear) -> str:
        """x and what attention [B, H, N, D] adds to it."""
        graph = self.graph
        turned = graph.op("Transpose", [mixed], perm=[0, 2, 1, 3])
        whole = graph.op("Reshape", [turned, graph.integers(COPIED, COPIED, self.network.spec.hidden)])
        return graph.op("Add", [x, linear(graph, whole, output)])


HALF = "float16"
TO_END = 2**31


def write_npu_encoder(packed: PackedSpeech, network: SpeechNetwork, folder: Path) -> GraphSpec:
    """Frames [1, mels, 2 T] -> keys [H, 1, D, T] and values [H, 1, T, D] of every layer of the decoder."""
    writer = SpeechWriter(GraphBuilder(HALF, None), network.decoder)
    graph, spec = writer.graph, network.decoder.spec
    graph.add_input(FEATURES, HALF, 1, network.mels, network.frames)
    x = writer.frames(packed)
    for layer in packed.encoder:
        x = _encoder_layer(writer, x, layer, network.encoder_heads)
    x = writer.norm(x, packed.encoder_norm)
    for index, layer in enumerate(packed.decoder):
        shapes = {"k": (spec.heads, 1, spec.head_dim, network.positions)}
        shapes["v"] = (spec.heads, 1, network.positions, spec.head_dim)
        for (side, shape), part, perm in zip(shapes.items(), writer.cross(x, layer), (KEY, ROW), strict=True):
            graph.reshape(writer.heads(part, perm), *shape, name=cross_name(side, index))
            graph.add_output(cross_name(side, index), HALF, *shape)
    return graph.save(folder, "encoder", GraphKind.SPEECH_ENCODER)


def write_npu_decoder(packed: PackedSpeech, network: SpeechNetwork, places: int, folder: Path) -> GraphSpec:
    """One token over P = `places` others -> logits [1, V, 1, 1] and its text's moved caches."""
    writer = SpeechWriter(GraphBuilder(HALF, None), network.decoder)
    graph, spec = writer.graph, network.decoder.spec
    graph.add_input(IDS, "int32", 1, 1)
    graph.add_input(MASK, HALF, 1, 1, 1, places + 1)
    graph.add_input(POSITIONS, "int32", 1)
    place = graph.op("Gather", [graph.parameter(packed.positions), POSITIONS], axis=0)
    x = graph.op("Add", [embed(graph, IDS, packed.table), graph.reshape(place, 1, 1, spec.hidden)])
    for index, layer in enumerate(packed.decoder):
        x = _own_attention(writer, x, layer, index, places)
        x = _heard_attention(writer, x, layer, index, network.positions)
        x = writer.feed_forward(x, layer)
    graph.reshape(linear(graph, writer.norm(x, packed.norm), packed.head), 1, spec.vocab, 1, 1, name=LOGITS)
    graph.add_output(LOGITS, HALF, 1, spec.vocab, 1, 1)
    return graph.save(folder, "decoder", GraphKind.SPEECH_DECODER)


def _encoder_layer(writer: SpeechWriter, x: str, layer: PackedSpeechLayer, heads: int) -> str:
    """x [1, T, hidden] -> the same shape; every row sees all of them."""
    query, key, value = (
        writer.heads(part, perm, count=heads)
        for part, perm in zip(writer.parts(x, layer), (ROW, KEY, ROW), strict=True)
    )
    weights = writer.graph.op("Softmax", [writer.graph.op("MatMul", [query, key])], axis=-1)
    mixed = writer.graph.op("MatMul", [weights, value])
    return writer.feed_forward(writer.joined(x, mixed, layer.own.output), layer)


def _own_attention(writer: SpeechWriter, x: str, layer: PackedSpeechLayer, index: int, places: int) -> str:
    """The token over its text's cache and itself; the moved caches are outputs."""
    graph, spec = writer.graph, writer.network.spec
    heads, size = spec.heads, spec.head_dim
    query, *fresh = writer.parts(x, layer)
    joined = []
    shapes = {"k": (heads, 1, size, places), "v": (heads, 1, places, size)}
    for (side, shape), part, perm in zip(shapes.items(), fresh, (KEY, ROW), strict=True):
        before = graph.add_input(self_name(side, index, "in"), HALF, *shape)
        axis = 3 if side == "k" else 2
        before = graph.reshape(before, 1, heads, *shape[2:])
        joined.append(graph.op("Concat", [before, writer.heads(part, perm)], axis=axis))
        bounds = [graph.integers(number) for number in (1, TO_END, axis)]
        moved = graph.op("Slice", [joined[-1], *bounds])
        graph.reshape(moved, *shape, name=self_name(side, index, "out"))
        graph.add_output(self_name(side, index, "out"), HALF, *shape)
    scores = graph.op("Add", [graph.op("MatMul", [writer.heads(query, ROW), joined[0]]), MASK])
    mixed = graph.op("MatMul", [graph.op("Softmax", [scores], axis=-1), joined[1]])
    return writer.joined(x, mixed, layer.own.output)


def _heard_attention(writer: SpeechWriter, x: str, layer: PackedSpeechLayer, index: int, positions: int) -> str:
    """The token over all of what was heard."""
    graph, spec, heard = writer.graph, writer.network.spec, layer.heard
    assert heard is not None
    heads, size = spec.heads, spec.head_dim
    key = graph.add_input(cross_name("k", index), HALF, heads, 1, size, positions)
    value = graph.add_input(cross_name("v", index), HALF, heads, 1, positions, size)
    query = writer.heads(linear(graph, writer.norm(x, heard.norm), heard.inputs[0]), ROW)
    scores = graph.op("MatMul", [query, graph.reshape(key, 1, heads, size, positions)])
    weights = graph.op("Softmax", [scores], axis=-1)
    mixed = graph.op("MatMul", [weights, graph.reshape(value, 1, heads, positions, size)])
    return writer.joined(x, mixed, heard.output)
