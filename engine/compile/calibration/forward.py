"""The float definition of the network, in numpy, straight from the checkpoint: what the graphs are checked against.

Written from the transformer's definition; it shares no code with the graph writer. Shapes: T tokens, H heads, K key
heads, D head_dim.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.compile.calibration.attention import Kept, capped, mixed_by_attention, rotation_of
from engine.compile.calibration.layer_reader import LayerReader, above, gated, norm, sigmoid
from engine.compile.calibration.recurrence import mixed_by_recurrence
from engine.compile.quantisation.methods.blocks import Bools
from engine.compile.sources.checkpoint import Checkpoint, Float32
from engine.compile.sources.experts import ExpertTensors
from engine.models.experts import ExpertDetails, GroupScore, RouterScore, Routing
from engine.models.layer_kinds import AltUp
from engine.models.network import Network

Chosen = tuple[NDArray[np.int64], Float32]  # experts of each token [T, k], and their shares


def mixed_by_experts(reader: LayerReader, x: Float32, outputs: Float32) -> Float32:
    """What the chosen experts make of x [T, hidden], normed. outputs [T, count]: of the router."""
    details = reader.network.details.experts
    assert details is not None
    tensors = ExpertTensors(reader.checkpoint, reader.network, reader.layer)
    bias = reader.tensor(details.names.choice_bias).reshape(-1) if details.names.choice_bias else None
    experts, shares = chosen(outputs, details, bias)
    mixed, scales = np.zeros_like(x), tensors.scales()
    for expert in np.unique(experts).tolist():
        tokens, places = np.nonzero(experts == expert)
        grown = _one(tensors, reader.network, expert, x[tokens]) * scales[expert]
        mixed[tokens] += grown * shares[tokens, places][:, None]
    return mixed


def chosen(outputs: Float32, details: ExpertDetails, bias: Float32 | None) -> Chosen:
    """The experts of each token and their shares, by the router's outputs [T, count]. bias [count]: of the choice."""
    routing = details.routing
    if routing.score is RouterScore.SOFTMAX:
        powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        scores = powers / powers.sum(axis=1, keepdims=True)
    else:
        scores = sigmoid(outputs)
    choice = _of_kept_groups(scores if bias is None else scores + bias, routing)
    experts = np.argsort(-choice, axis=1, kind="stable")[:, : details.spec.chosen]
    shares = np.take_along_axis(scores, experts, axis=1)
    if routing.is_normalised:
        shares = shares / shares.sum(axis=1, keepdims=True)
    return experts, np.asarray(shares * np.float32(routing.scale), np.float32)


def _of_kept_groups(choice: Float32, routing: Routing) -> Float32:
    """The scores, with those of the other groups out of reach."""
    if routing.kept_groups == routing.groups:
        return choice
    apart = choice.reshape(len(choice), routing.groups, -1)
    best = np.sort(apart, axis=2)[:, :, -(1 if routing.group_score is GroupScore.BEST else 2) :].sum(axis=2)
    kept = np.argsort(-best, axis=1, kind="stable")[:, : routing.kept_groups]
    mask = np.zeros_like(best, np.bool_)
    np.put_along_axis(mask, kept, True, axis=1)
    return np.where(mask[:, :, None], apart, -np.inf).reshape(choice.shape)


def _one(tensors: ExpertTensors, network: Network, expert: int, x: Float32) -> Float32:
    """One expert over the tokens that chose it [some, hidden]."""
    details = network.details.experts
    assert details is not None
    parts, biases = [x @ weight.T for weight in tensors.gate_up(expert)], tensors.biases(expert)
    if biases is not None:
        parts = [part + bias for part, bias in zip(parts, biases, strict=False)]
    if details.clipped is None:
        inner = gated(np.concatenate(parts, axis=1), network.details.activation)
    else:
        gate, up = parts
        alpha, limit = np.float32(details.clipped.alpha), np.float32(details.clipped.limit)
        gate, up = np.minimum(gate, limit), np.clip(up, -limit, limit) + np.float32(1)
        inner = gate * sigmoid(alpha * gate) * up
    grown: Float32 = inner @ tensors.down(expert).T
    return grown if biases is None else grown + biases[2]


def altup_of(reader: LayerReader) -> AltUp:
    """Of a network that has several streams."""
    altup = reader.network.details.altup
    assert altup is not None
    return altup


def spread(reader: LayerReader, x: Float32) -> Float32:
    """Embedded tokens [T, hidden] as streams: themselves, and others made as large."""
    others = [reader.project(x, (name,)) for name in altup_of(reader).spreading]
    return np.stack([x, *(_as_large(other, x) for other in others)], axis=1)


def predicted(reader: LayerReader, streams: Float32) -> Float32:
    """What a layer takes the streams for."""
    shares = reader.project(_shares(reader, streams[:, 0]), (altup_of(reader).prediction,))
    count = streams.shape[1]
    return np.asarray(streams + shares.reshape(-1, count, count) @ streams, np.float32)


def with_path(reader: LayerReader, x: Float32, normed: Float32) -> Float32:
    """x [T, hidden] behind attention, which took `normed` -> both paths together."""
    altup = altup_of(reader)
    path = reader.project(reader.project(normed, (altup.left,)), (altup.right,))
    both = x + normed + reader.normed(path, altup.path_norm)
    return np.asarray(both / np.float32(math.sqrt(2)), np.float32)


def corrected(reader: LayerReader, streams: Float32, x: Float32, of_inputs: Callable[[Float32], Float32]) -> Float32:
    """Predicted streams and x [T, hidden], which a layer made of the first -> the streams behind the layer. of_inputs:
    what it adds to all but the first, of the first [T, hidden]."""
    altup = altup_of(reader)
    shares = reader.project(_shares(reader, x), (altup.correction,)) + np.float32(1)
    behind = streams + shares[:, :, None] * (x - streams[:, 0])[:, None]
    behind[:, 1:] += of_inputs(behind[:, 0] * reader.tensor(altup.scale))[:, None]
    return np.asarray(behind, np.float32)


def merged(reader: LayerReader, streams: Float32) -> Float32:
    """What the last norm takes [T, hidden]."""
    first = streams[:, 0]
    others = [reader.project(streams[:, 1 + index], (name,)) for index, name in enumerate(altup_of(reader).merging)]
    return np.asarray(np.mean([first, *(_as_large(other, first) for other in others)], axis=0), np.float32)


def _shares(reader: LayerReader, x: Float32) -> Float32:
    altup = altup_of(reader)
    asked = reader.normed(x, altup.router_norm) / np.float32(x.shape[-1])
    return np.tanh(reader.project(asked, (altup.router,)))


def _as_large(x: Float32, target: Float32) -> Float32:
    """x with the mean square of `target`."""
    wanted, found = (np.mean(np.square(each), axis=-1, keepdims=True) for each in (target, x))
    return np.asarray(x * np.sqrt(wanted) / np.sqrt(np.maximum(found, np.float32(1e-5))), np.float32)


def embedded(checkpoint: Checkpoint, network: Network, texts: Sequence[Sequence[int]]) -> list[Float32]:
    """The stream before the first layer, of each text [tokens, hidden]."""
    rows = looked_up(checkpoint, network.details.names.embedding, texts)
    return [row * np.float32(network.details.multipliers.embedding) for row in rows]


def looked_up(checkpoint: Checkpoint, table: str, texts: Sequence[Sequence[int]]) -> list[Float32]:
    """Rows of a table, of each text [tokens, width]; each is read once."""
    used = sorted({token for text in texts for token in text})
    rows = np.concatenate([checkpoint.rows(f"{table}.weight", token, token + 1) for token in used])
    return [rows[np.searchsorted(used, np.array(text))] for text in texts]


_HEAD_ROWS = 16_384
Mix = Callable[[Float32, Float32], Float32]  # the first product of a layer and what was projected -> mixed rows


def reference_logits(
    checkpoint: Checkpoint, network: Network, tokens: NDArray[np.int64], visible: Bools | None = None
) -> Float32:
    """Logits [T, vocab] of a pass over `tokens` [T] from position 0. Holds one matrix at a time. visible: which tokens
    attention of each token sees [T, T], None = those up to itself."""
    return head_logits(checkpoint, network, reference_hidden(checkpoint, network, tokens, visible))


def head_logits(checkpoint: Checkpoint, network: Network, x: Float32) -> Float32:
    """Logits [T, vocab] of hidden states [T, hidden] behind the final norm."""
    spec, names = network.spec, network.details.names
    head = f"{names.embedding if spec.tied_head else names.head}.weight"
    logits = np.empty((len(x), spec.vocab), np.float32)
    for start in range(0, spec.vocab, _HEAD_ROWS):
        stop = min(start + _HEAD_ROWS, spec.vocab)
        np.matmul(x, checkpoint.rows(head, start, stop).T, out=logits[:, start:stop])
    if network.details.multipliers.logits != 1:
        logits *= np.float32(network.details.multipliers.logits)
    return capped(logits, network.details.logit_softcap)


def reference_hidden(
    checkpoint: Checkpoint, network: Network, tokens: NDArray[np.int64], visible: Bools | None = None
) -> Float32:
    """As `reference_logits`, but what the head is given: hidden states [T, hidden] behind the final norm."""
    reader, (x,) = LayerReader(checkpoint, network, 0), embedded(checkpoint, network, [tokens.tolist()])
    x = reader.normed(x, network.details.names.embedding_norm)
    inputs, kept = layer_inputs(checkpoint, network, tokens, x), Kept()
    x = x if network.details.altup is None else spread(reader, x)
    for layer in range(network.spec.layers):
        reader = LayerReader(checkpoint, network, layer)
        x = _passed(reader, x, mixing(reader, [len(tokens)], visible, kept), inputs)
    x = x if network.details.altup is None else merged(reader, x)
    return final_normed(checkpoint, network, x)


def _passed(reader: LayerReader, x: Float32, mix: Mix, inputs: Float32 | None) -> Float32:
    """The stream, or the streams, behind a layer and what it makes of its own inputs."""
    scale = reader.network.details.names.layer_scale
    if reader.network.details.altup is None:
        x = layer_output(reader, x, mix)
        x = x if inputs is None else x + _of_inputs(reader, x, inputs)
        return x * reader.tensor(scale) if scale else x
    streams = predicted(reader, x)
    first = layer_output(reader, streams[:, 0], mix)
    return corrected(reader, streams, first, lambda x: _of_inputs(reader, x, inputs))


def layer_inputs(checkpoint: Checkpoint, network: Network, tokens: NDArray[np.int64], x: Float32) -> Float32 | None:
    """What each layer takes of tokens beside the stream [T, layers, size], x [T, hidden] being embedded; None where
    layers take nothing else."""
    names = network.details.layer_inputs
    if names is None:
        return None
    shape, reader = (len(tokens), network.spec.layers, names.size), LayerReader(checkpoint, network, 0)
    places = [int(token) if token < names.vocab else 0 for token in tokens]
    (of_tokens,) = looked_up(checkpoint, names.table, [places])
    of_stream = reader.project(x, (names.projection,)) / np.float32(math.sqrt(network.spec.hidden))
    of_stream = reader.normed(of_stream.reshape(shape), names.norm)
    total = of_stream + of_tokens.reshape(shape) * np.float32(math.sqrt(names.size))
    return np.asarray(total * np.float32(math.sqrt(0.5)), np.float32)


def _of_inputs(reader: LayerReader, x: Float32, inputs: Float32 | None) -> Float32:
    """What a layer makes of its own inputs and x [T, hidden]."""
    details = reader.network.details
    names = details.layer_inputs
    assert names is not None and inputs is not None
    both = np.concatenate([reader.project(x, (names.gate,)), inputs[:, reader.layer]], axis=1)
    return reader.normed(reader.project(gated(both, details.activation), (names.output,)), names.post_norm)


def final_normed(checkpoint: Checkpoint, network: Network, x: Float32) -> Float32:
    """The stream [T, hidden] behind the last layer as the head is given it."""
    return LayerReader(checkpoint, network, network.spec.layers).normed(x, network.details.names.final_norm)


Tap = Callable[[str, Float32], None]  # which matrices read it (one of the names below), and the inputs [T, width]
QKV, OUTPUT, GATE_UP, DOWN = "qkv", "output", "gate_up", "down"


def layer_output(reader: LayerReader, x: Float32, mix: Mix, tap: Tap = lambda *_: None) -> Float32:
    """The stream [T, hidden] behind a layer. mix: `mixing` of one text or of several. tap: is shown all inputs."""
    network, names, layer = reader.network, reader.network.details.names, reader.layer
    residual = np.float32(network.details.multipliers.residual)
    normed = reader.normed(x, network.attention_norm(layer))
    tap(QKV, normed)
    mixed = mix(reader.project(normed, network.mixer_names(layer)), normed)
    tap(OUTPUT, mixed)
    grown = reader.summed(mixed, network.output_names(layer))
    x = x + reader.normed(grown, names.attention_post_norm) * residual
    x = x if network.details.altup is None else with_path(reader, x, normed)
    if not network.has_feed_forward(layer):
        return x
    return x + reader.normed(_fed_forward(reader, x, tap), names.ffn_post_norm) * residual


def _fed_forward(reader: LayerReader, x: Float32, tap: Tap) -> Float32:
    """What a feed-forward makes of the stream [T, hidden], or the chosen experts and what all tokens go through."""
    network, names, experts = reader.network, reader.network.details.names, reader.network.details.experts
    normed = reader.normed(x, names.ffn_norm)
    if experts is None or reader.layer not in network.expert_layers:
        return _dense(reader, normed, names.gate_up, names.down, tap)
    if (beside := experts.beside) is not None:
        dense = _dense(reader, normed, experts.names.shared_gate_up, experts.names.shared_down, tap)
        weight = reader.tensor(beside.router_scale) / np.float32(math.sqrt(network.spec.hidden))
        routed = reader.project(norm(x, weight, network.norm_epsilon), (experts.names.router,))
        grown = mixed_by_experts(reader, reader.normed(x, beside.norm), routed)
        return reader.normed(dense, beside.dense_post_norm) + reader.normed(grown, beside.post_norm)
    grown = mixed_by_experts(reader, normed, reader.project(normed, (experts.names.router,)))
    if not experts.names.shared_down:
        return grown
    shared = _dense(reader, normed, experts.names.shared_gate_up, experts.names.shared_down, tap)
    if experts.names.shared_gate:
        shared = shared * sigmoid(reader.project(normed, (experts.names.shared_gate,)))
    return grown + shared


def _dense(reader: LayerReader, normed: Float32, gate_up: tuple[str, ...], down: str, tap: Tap) -> Float32:
    tap(GATE_UP, normed)
    stacked, cutoff = reader.project(normed, gate_up), reader.network.gate_cutoff(reader.layer)
    if cutoff is not None:
        gate, up = np.split(stacked, 2, axis=1)
        stacked = np.concatenate([above(gate, cutoff), up], axis=1)
    inner = gated(stacked, reader.network.details.activation)
    tap(DOWN, inner)
    return reader.project(inner, (down,))


def mixing(reader: LayerReader, lengths: Sequence[int], visible: Bools | None = None, kept: Kept | None = None) -> Mix:
    """Attention or recurrence of a layer over texts that lie one behind the other, each by itself. visible: as in
    `reference_logits`, of one text, as is kept: keys and values that later layers read."""
    ends = np.cumsum(lengths)[:-1]

    def mix(stacked: Float32, normed: Float32) -> Float32:
        pairs = zip(np.split(stacked, ends), np.split(normed, ends), strict=True)
        return np.concatenate([mixed_text(reader, *pair, visible, kept) for pair in pairs])

    return mix


def mixed_text(
    reader: LayerReader, stacked: Float32, normed: Float32, visible: Bools | None = None, kept: Kept | None = None
) -> Float32:
    """What the output projections are given of one text that begins at position 0, side by side."""
    spec, layer, given = reader.network.spec, reader.layer, list[Float32]()
    if layer in spec.attention_layers:
        own = stacked[:, : sum(reader.network.qkv_outputs(layer))]
        given.append(_attended(reader, own, visible, Kept() if kept is None else kept))
    if (recurrent := spec.recurrence_of(layer)) is not None:
        given.append(mixed_by_recurrence(reader, stacked[:, -recurrent.inputs :], normed))
    return np.concatenate(given, axis=1)


def _attended(reader: LayerReader, stacked: Float32, visible: Bools | None, kept: Kept) -> Float32:
    count, spec = len(stacked), reader.network.spec
    window = spec.attention_of(reader.layer).window
    if reader.network.details.sees_both_ways:
        places = np.arange(count)
        visible = np.abs(places[:, None] - places) <= (window // 2 if window else count)
    else:
        visible = np.tri(count, dtype=np.bool_) if visible is None else visible
        visible = visible & ~np.tri(count, k=-window, dtype=np.bool_) if window else visible
    turn = rotation_of(spec.rope_of(reader.layer), np.arange(count))
    return mixed_by_attention(reader, stacked, turn, visible, kept)
