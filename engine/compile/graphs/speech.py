"""The graphs of a Whisper: an encoder, a decoder over caches, and the decoder once more to see what it listens to.

Both halves norm what goes into attention and feed-forward (pre-norm). Shapes: B sequences, N tokens of each, T
positions of the encoder, H heads, D numbers of a head, P places of the self cache.
"""

from dataclasses import dataclass
from pathlib import Path

from engine.bundle import speech as contract
from engine.bundle.manifest import GraphKind, GraphSpec
from engine.bundle.specs import SpeechSpec
from engine.bundle.tensors import IDS, LOGITS, MASK
from engine.compile.graphs.embedding import embed
from engine.compile.graphs.graph_builder import CONTRIB, GraphBuilder
from engine.compile.graphs.lowering import linear
from engine.compile.quantisation.packed import PackedLinear, PackedNorm, PackedTable, PackedTowerLayer
from engine.compile.quantisation.weight_file import StoredTensor
from engine.models.network import Network
from engine.models.speech import EPSILON, SpeechNetwork

DTYPE, HALF = "float32", "float16"
ROW, KEY = (0, 2, 1, 3), (0, 2, 3, 1)  # [B, N, H, D] -> [B, H, N, D] and [B, H, D, N]
COPIED = 0  # a dimension that Reshape takes from its input
TO_END = 2**31


@dataclass(frozen=True, slots=True)
class PackedSpeech:
    """Everything; convolutions are (weight, bias) and positions [T, hidden] and [P, hidden]."""

    convolutions: tuple[tuple[StoredTensor, StoredTensor], ...]
    heard_positions: StoredTensor
    encoder: tuple[PackedTowerLayer, ...]
    encoder_norm: PackedNorm
    table: PackedTable
    positions: StoredTensor
    decoder: tuple[PackedTowerLayer, ...]
    norm: PackedNorm
    head: PackedLinear


def write_encoder(packed: PackedSpeech, network: SpeechNetwork, spec: SpeechSpec, folder: Path) -> GraphSpec:
    """Frames of one window -> keys and values of every layer of the decoder."""
    writer = _declared(network, spec, GraphKind.SPEECH_ENCODER)
    x = writer.encoded(packed, network)
    for index, layer in enumerate(packed.decoder):
        key, value = writer.cross(x, layer)
        writer.heads(key, KEY, name=contract.cross_name("k", index))
        writer.heads(value, ROW, name=contract.cross_name("v", index))
    return writer.graph.save(folder, "encoder", GraphKind.SPEECH_ENCODER)


def _declared(network: SpeechNetwork, spec: SpeechSpec, kind: GraphKind) -> "SpeechWriter":
    """Of a graph of that kind, with its inputs and outputs."""
    writer, decoder = SpeechWriter(GraphBuilder(DTYPE, None), network.decoder), network.decoder
    writer.graph.declare(*contract.graph_forms(decoder.spec, spec, decoder.compiled_context, kind))
    return writer


def write_decoder(packed: PackedSpeech, network: SpeechNetwork, spec: SpeechSpec, folder: Path) -> GraphSpec:
    """New tokens of several sequences over their caches -> logits of the last one of each, and keys and values."""
    writer = _declared(network, spec, GraphKind.SPEECH_DECODER)
    graph, x = writer.graph, writer.embedded(packed)
    for index, layer in enumerate(packed.decoder):
        x = writer.cached_attention(x, layer, index)
        x, _ = writer.heard_attention(x, layer, index)
        x = writer.feed_forward(x, layer)
    last = writer.norm(graph.slice(x, -1, TO_END, 1), packed.norm)
    graph.op("Identity", [linear(graph, last, packed.head)], name=LOGITS)
    return graph.save(folder, "decoder", GraphKind.SPEECH_DECODER)


def write_alignment(packed: PackedSpeech, network: SpeechNetwork, spec: SpeechSpec, folder: Path) -> GraphSpec:
    """A whole text -> what some heads make of each position of the encoder, before the softmax [B, A, N, T]."""
    writer = _declared(network, spec, GraphKind.SPEECH_ALIGNMENT)
    graph, x = writer.graph, writer.embedded(packed)
    scores: dict[tuple[int, int], str] = {}
    for index, layer in enumerate(packed.decoder):
        x = writer.own_attention(x, layer, MASK)
        x, weights = writer.heard_attention(x, layer, index)
        for pair in spec.alignment:
            if pair[0] == index:
                scores[pair] = graph.slice(weights, pair[1], pair[1] + 1, 1)
        x = writer.feed_forward(x, layer)
    graph.op("Concat", [scores[pair] for pair in spec.alignment], name=contract.ALIGNMENT, axis=1)
    return graph.save(folder, "alignment", GraphKind.SPEECH_ALIGNMENT)


@dataclass(frozen=True, slots=True)
class SpeechWriter:
    """Writes the nodes of one graph. npu_positions: T of an NPU's graph, of plain operators in half precision; 0 = of a
    CPU's."""

    graph: GraphBuilder
    network: Network
    npu_positions: int = 0

    def encoded(self, packed: PackedSpeech, network: SpeechNetwork) -> str:
        """Frames [1, mels, 2 T] -> rows [1, T, hidden], each of which has seen all of them."""
        graph, x = self.graph, contract.FEATURES
        for (weight, bias), stride in zip(packed.convolutions, (1, 2), strict=True):
            inputs = [x, graph.parameter(weight), graph.parameter(bias)]
            x = graph.op("Gelu", [graph.op("Conv", inputs, kernel_shape=[3], pads=[1, 1], strides=[stride])])
        x = graph.op("Add", [graph.transpose(x, 0, 2, 1), graph.parameter(packed.heard_positions)])
        for layer in packed.encoder:
            if self.npu_positions:
                x = self.own_attention(x, layer, heads=network.encoder_heads)
            else:
                heads, parts = network.encoder_heads, self.parts(x, layer)
                mixed = graph.op("MultiHeadAttention", parts, CONTRIB, num_heads=heads, scale=1.0)
                x = graph.op("Add", [x, linear(graph, mixed, layer.own.output)])
            x = self.feed_forward(x, layer)
        return self.norm(x, packed.encoder_norm)

    def cross(self, x: str, layer: PackedTowerLayer) -> list[str]:
        """Keys and values of what was heard for a layer of the decoder, each [1, T, hidden]."""
        assert layer.heard is not None
        return self.graph.split(linear(self.graph, x, layer.heard.inputs[1]), *[self.network.spec.hidden] * 2)

    def embedded(self, packed: PackedSpeech) -> str:
        """Tokens and positions [B, N, hidden]."""
        graph = self.graph
        places = graph.op("Gather", [graph.parameter(packed.positions), contract.POSITIONS], axis=0)
        return graph.op("Add", [embed(graph, IDS, packed.table), places])

    def parts(self, x: str, layer: PackedTowerLayer) -> list[str]:
        """Queries, keys and values of rows that see their own kind, each [B, N, hidden]."""
        stacked = linear(self.graph, self.norm(x, layer.own.norm), layer.own.inputs[0])
        return self.graph.split(stacked, *[self.network.spec.hidden] * 3)

    def cached_attention(self, x: str, layer: PackedTowerLayer, index: int) -> str:
        """Each token over its text's cache, which the operator writes new keys and values into where it lies."""
        graph, heads = self.graph, self.network.spec.heads
        caches, updated = ([contract.self_name(side, index, end) for side in ("k", "v")] for end in ("in", "out"))
        inputs = [*self.parts(x, layer), *caches, contract.LAST_PLACES, contract.TOTAL]
        counts = {"num_heads": heads, "kv_num_heads": heads}
        mixed, *_ = graph.node("GroupQueryAttention", inputs, [f"own_{index}", *updated], CONTRIB, scale=1.0, **counts)
        return graph.op("Add", [x, linear(graph, mixed, layer.own.output)])

    def own_attention(self, x: str, layer: PackedTowerLayer, mask: str = "", heads: int = 0) -> str:
        """Each row over those of its own kind, all of them new. heads: H where it is not the decoder's."""
        parts = zip(self.parts(x, layer), (ROW, KEY, ROW), strict=True)
        query, key, value = (self.heads(part, perm, count=heads) for part, perm in parts)
        return self.joined(x, self.graph.attention(query, key, value, mask), layer.own.output)

    def moved_attention(self, x: str, layer: PackedTowerLayer, index: int, places: int) -> str:
        """One token over its text's cache of P = `places` and itself; the moved caches are outputs. NPU only."""
        graph, heads, size = self.graph, self.network.spec.heads, self.network.spec.head_dim
        query, *fresh = self.parts(x, layer)
        joined, shapes = [], {"k": (heads, 1, size, places), "v": (heads, 1, places, size)}
        for (side, shape), part, perm, axis in zip(shapes.items(), fresh, (KEY, ROW), (3, 2), strict=True):
            before = graph.add_input(contract.self_name(side, index, "in"), HALF, *shape)
            before = graph.reshape(before, 1, heads, *shape[2:])
            joined.append(graph.op("Concat", [before, self.heads(part, perm)], axis=axis))
            graph.reshape(graph.slice(joined[-1], 1, TO_END, axis), *shape, name=contract.self_name(side, index, "out"))
            graph.add_output(contract.self_name(side, index, "out"), HALF, *shape)
        key, value = joined
        return self.joined(x, graph.attention(self.heads(query, ROW), key, value, MASK), layer.own.output)

    def heard_attention(self, x: str, layer: PackedTowerLayer, index: int) -> tuple[str, str]:
        """Each token over all of what was heard; the new x, and the scores [B, H, N, T]."""
        graph, spec, places, heard = self.graph, self.network.spec, self.npu_positions, layer.heard
        assert heard is not None
        query = self.heads(linear(graph, self.norm(x, heard.norm), heard.inputs[0]), ROW)
        scores = graph.op("MatMul", [query, self._heard(contract.cross_name("k", index), spec.head_dim, places)])
        weights = graph.op("Softmax", [scores], axis=-1)
        value = self._heard(contract.cross_name("v", index), places, spec.head_dim)
        return self.joined(x, graph.op("MatMul", [weights, value]), heard.output), scores

    def _heard(self, name: str, *sizes: int) -> str:
        """Keys or values [1, H, ..], declared here in an NPU's graph."""
        if not self.npu_positions:
            return name
        heads = self.network.spec.heads
        return self.graph.reshape(self.graph.add_input(name, HALF, heads, 1, *sizes), 1, heads, *sizes)

    def feed_forward(self, x: str, layer: PackedTowerLayer) -> str:
        """x [B, N, hidden] -> the same shape."""
        graph = self.graph
        inner = graph.op("Gelu", [linear(graph, self.norm(x, layer.ffn_norm), layer.up)])
        return graph.op("Add", [x, linear(graph, inner, layer.down)])

    def heads(self, x: str, perm: tuple[int, ...], name: str = "", count: int = 0) -> str:
        """[B, N, hidden] -> [B, N, H, D], turned. count: H where it is not the decoder's."""
        spec, heads = self.network.spec, count or self.network.spec.heads
        shape = self.graph.integers(COPIED, COPIED, heads, spec.hidden // heads)
        return self.graph.transpose(self.graph.op("Reshape", [x, shape]), *perm, name=name)

    def norm(self, x: str, packed: PackedNorm) -> str:
        weight, bias = self.graph.parameter(packed.weight), self.graph.parameter(packed.bias)
        return self.graph.op("LayerNormalization", [x, weight, bias], axis=-1, epsilon=EPSILON)

    def joined(self, x: str, mixed: str, output: PackedLinear) -> str:
        """x and what attention [B, H, N, D] adds to it."""
        graph, shape = self.graph, (COPIED, COPIED, self.network.spec.hidden)
        whole = graph.op("Reshape", [graph.transpose(mixed, *ROW), graph.integers(*shape)])
        return graph.op("Add", [x, linear(graph, whole, output)])


def write_npu_encoder(packed: PackedSpeech, network: SpeechNetwork, folder: Path) -> GraphSpec:
    """Frames [1, mels, 2 T] -> keys [H, 1, D, T] and values [H, 1, T, D] of every layer of the decoder."""
    writer = SpeechWriter(GraphBuilder(HALF, None), network.decoder, network.positions)
    graph, spec = writer.graph, network.decoder.spec
    graph.add_input(contract.FEATURES, HALF, 1, network.mels, network.frames)
    x = writer.encoded(packed, network)
    shapes = {"k": (spec.head_dim, network.positions), "v": (network.positions, spec.head_dim)}
    for index, layer in enumerate(packed.decoder):
        for (side, sizes), part, perm in zip(shapes.items(), writer.cross(x, layer), (KEY, ROW), strict=True):
            graph.reshape(writer.heads(part, perm), spec.heads, 1, *sizes, name=contract.cross_name(side, index))
            graph.add_output(contract.cross_name(side, index), HALF, spec.heads, 1, *sizes)
    return graph.save(folder, "encoder", GraphKind.SPEECH_ENCODER)


def write_npu_decoder(packed: PackedSpeech, network: SpeechNetwork, places: int, folder: Path) -> GraphSpec:
    """One token over P = `places` others -> logits [1, V, 1, 1] and its text's moved caches."""
    writer = SpeechWriter(GraphBuilder(HALF, None), network.decoder, network.positions)
    graph, spec = writer.graph, network.decoder.spec
    graph.add_input(IDS, "int32", 1, 1)
    graph.add_input(MASK, HALF, 1, 1, 1, places + 1)
    graph.add_input(contract.POSITIONS, "int32", 1)
    place = graph.op("Gather", [graph.parameter(packed.positions), contract.POSITIONS], axis=0)
    x = graph.op("Add", [embed(graph, IDS, packed.table), graph.reshape(place, 1, 1, spec.hidden)])
    for index, layer in enumerate(packed.decoder):
        x = writer.moved_attention(x, layer, index, places)
        x, _ = writer.heard_attention(x, layer, index)
        x = writer.feed_forward(x, layer)
    graph.reshape(linear(graph, writer.norm(x, packed.norm), packed.head), 1, spec.vocab, 1, 1, name=LOGITS)
    graph.add_output(LOGITS, HALF, 1, spec.vocab, 1, 1)
    return graph.save(folder, "decoder", GraphKind.SPEECH_DECODER)
