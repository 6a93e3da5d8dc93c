"""The graphs of a Whisper for an NPU, cut as Qualcomm AI Hub cuts it: an encoder, and a decoder of one token.

Every shape is a number. A text's own keys and values lie at the right end of its caches; the decoder gives the caches
moved to the left by one place, with those of the new token at the end. Shapes: T positions of the encoder, H heads, D
numbers of a head, P places of the self cache, V vocabulary.
"""

from pathlib import Path

from engine.bundle.manifest import GraphKind, GraphSpec
from engine.bundle.speech import POSITIONS, cross_name, self_name
from engine.bundle.tensors import IDS, LOGITS, MASK
from engine.compile.graphs.embedding import embed
from engine.compile.graphs.graph_builder import GraphBuilder
from engine.compile.graphs.layers import linear
from engine.compile.graphs.speech import PackedSpeech, PackedSpeechLayer, SpeechWriter
from engine.models.speech import SpeechNetwork

DTYPE = "float16"
ROW, KEY = [0, 2, 1, 3], [0, 2, 3, 1]  # [1, N, H, D] -> [1, H, N, D] and [1, H, D, N]
TO_END = 2**31


def write_npu_encoder(packed: PackedSpeech, network: SpeechNetwork, folder: Path) -> GraphSpec:
    """Frames [1, mels, 2 T] -> keys [H, 1, D, T] and values [H, 1, T, D] of every layer of the decoder."""
    writer = SpeechWriter(GraphBuilder(DTYPE, None), network.decoder)
    graph, spec = writer.graph, network.decoder.spec
    x = writer.frames(packed, network)
    for layer in packed.encoder:
        x = _encoder_layer(writer, x, layer, network.encoder_heads)
    x = writer.norm(x, packed.encoder_norm)
    for index, layer in enumerate(packed.decoder):
        shapes = {"k": (spec.heads, 1, spec.head_dim, network.positions)}
        shapes["v"] = (spec.heads, 1, network.positions, spec.head_dim)
        for (side, shape), part, perm in zip(shapes.items(), writer.cross(x, layer), (KEY, ROW), strict=True):
            graph.reshape(writer.heads(part, perm), *shape, name=cross_name(side, index))
            graph.add_output(cross_name(side, index), DTYPE, *shape)
    return graph.save(folder, "encoder", GraphKind.SPEECH_ENCODER)


def write_npu_decoder(packed: PackedSpeech, network: SpeechNetwork, places: int, folder: Path) -> GraphSpec:
    """One token over P = `places` others -> logits [1, V, 1, 1] and its text's moved caches."""
    writer = SpeechWriter(GraphBuilder(DTYPE, None), network.decoder)
    graph, spec = writer.graph, network.decoder.spec
    graph.add_input(IDS, "int32", 1, 1)
    graph.add_input(MASK, DTYPE, 1, 1, 1, places + 1)
    graph.add_input(POSITIONS, "int32", 1)
    place = graph.op("Gather", [graph.parameter(packed.positions), POSITIONS], axis=0)
    x = graph.op("Add", [embed(graph, IDS, packed.table), graph.reshape(place, 1, 1, spec.hidden)])
    for index, layer in enumerate(packed.decoder):
        x = _own_attention(writer, x, layer, index, places)
        x = _heard_attention(writer, x, layer, index, network.positions)
        x = writer.feed_forward(x, layer)
    graph.reshape(linear(graph, writer.norm(x, packed.norm), packed.head), 1, spec.vocab, 1, 1, name=LOGITS)
    graph.add_output(LOGITS, DTYPE, 1, spec.vocab, 1, 1)
    return graph.save(folder, "decoder", GraphKind.SPEECH_DECODER)


def _encoder_layer(writer: SpeechWriter, x: str, layer: PackedSpeechLayer, heads: int) -> str:
    """x [1, T, hidden] -> the same shape; every row sees all of them."""
    query, key, value = (
        writer.heads(part, perm, count=heads)
        for part, perm in zip(_parts(writer, x, layer), (ROW, KEY, ROW), strict=True)
    )
    weights = writer.graph.op("Softmax", [writer.graph.op("MatMul", [query, key])], axis=-1)
    mixed = writer.graph.op("MatMul", [weights, value])
    return writer.feed_forward(writer.joined(x, mixed, layer.own.output), layer)


def _parts(writer: SpeechWriter, x: str, layer: PackedSpeechLayer) -> list[str]:
    """Queries, keys and values of rows that see their own kind, each [1, N, hidden]."""
    graph, hidden = writer.graph, writer.network.spec.hidden
    stacked = linear(graph, writer.norm(x, layer.own.norm), layer.own.inputs[0])
    return graph.op_many("Split", [stacked, graph.integers(hidden, hidden, hidden)], 3, axis=-1)


def _own_attention(writer: SpeechWriter, x: str, layer: PackedSpeechLayer, index: int, places: int) -> str:
    """The token over its text's cache and itself; the moved caches are outputs."""
    graph, spec = writer.graph, writer.network.spec
    heads, size = spec.heads, spec.head_dim
    query, *fresh = _parts(writer, x, layer)
    joined = []
    shapes = {"k": (heads, 1, size, places), "v": (heads, 1, places, size)}
    for (side, shape), part, perm in zip(shapes.items(), fresh, (KEY, ROW), strict=True):
        before = graph.add_input(self_name(side, index, "in"), DTYPE, *shape)
        axis = 3 if side == "k" else 2
        before = graph.reshape(before, 1, heads, *shape[2:])
        joined.append(graph.op("Concat", [before, writer.heads(part, perm)], axis=axis))
        bounds = [graph.integers(number) for number in (1, TO_END, axis)]
        moved = graph.op("Slice", [joined[-1], *bounds])
        graph.reshape(moved, *shape, name=self_name(side, index, "out"))
        graph.add_output(self_name(side, index, "out"), DTYPE, *shape)
    scores = graph.op("Add", [graph.op("MatMul", [writer.heads(query, ROW), joined[0]]), MASK])
    mixed = graph.op("MatMul", [graph.op("Softmax", [scores], axis=-1), joined[1]])
    return writer.joined(x, mixed, layer.own.output)


def _heard_attention(writer: SpeechWriter, x: str, layer: PackedSpeechLayer, index: int, positions: int) -> str:
    """The token over all of what was heard."""
    graph, spec, heard = writer.graph, writer.network.spec, layer.heard
    assert heard is not None
    heads, size = spec.heads, spec.head_dim
    key = graph.add_input(cross_name("k", index), DTYPE, heads, 1, size, positions)
    value = graph.add_input(cross_name("v", index), DTYPE, heads, 1, positions, size)
    query = writer.heads(linear(graph, writer.norm(x, heard.norm), heard.inputs[0]), ROW)
    scores = graph.op("MatMul", [query, graph.reshape(key, 1, heads, size, positions)])
    weights = graph.op("Softmax", [scores], axis=-1)
    mixed = graph.op("MatMul", [weights, graph.reshape(value, 1, heads, positions, size)])
    return writer.joined(x, mixed, heard.output)
