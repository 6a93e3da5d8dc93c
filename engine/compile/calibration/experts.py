"""The float definition of layers with experts, in numpy: each expert over the tokens that chose it."""

import numpy as np
from numpy.typing import NDArray

from engine.compile.calibration.layer_reader import gated, sigmoid
from engine.compile.sources.checkpoint import Checkpoint, Float32
from engine.compile.sources.experts import ExpertTensors
from engine.models.experts import ExpertDetails, GroupScore, RouterScore, Routing
from engine.models.network import Network

Chosen = tuple[NDArray[np.int64], Float32]  # experts of each token [T, k], and their shares


def mixed_by_experts(checkpoint: Checkpoint, network: Network, layer: int, x: Float32, outputs: Float32) -> Float32:
    """What the chosen experts make of x [T, hidden], normed. outputs [T, count]: of the router."""
    details = network.details.experts
    assert details is not None
    tensors = ExpertTensors(checkpoint, network, layer)
    experts, shares = chosen(outputs, details, _choice_bias(checkpoint, details, layer))
    mixed, scales = np.zeros_like(x), tensors.scales()
    for expert in np.unique(experts).tolist():
        tokens, places = np.nonzero(experts == expert)
        grown = _one(tensors, network, expert, x[tokens]) * scales[expert]
        mixed[tokens] += grown * shares[tokens, places][:, None]
    return mixed


def chosen(outputs: Float32, details: ExpertDetails, bias: Float32 | None) -> Chosen:
    """The experts of each token and their shares, by the router's outputs [T, count]. bias [count]: of the choice."""
    routing = details.routing
    if routing.score is RouterScore.SOFTMAX:
        powers = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        scores = powers / powers.sum(axis=1, keepdims=True)
    else:
        with np.errstate(over="ignore"):
            scores = np.float32(1) / (np.float32(1) + np.exp(-outputs))
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


def _choice_bias(checkpoint: Checkpoint, details: ExpertDetails, layer: int) -> Float32 | None:
    if not details.names.choice_bias:
        return None
    name = details.names.choice_bias.format(layer=layer)
    return checkpoint.tensor(name, checkpoint.shape(name)).reshape(-1)


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
