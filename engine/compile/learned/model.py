"""Scales of the whole model, learned end to end so that its predictions match those of the float model.

What is made small is the mean over tokens of KL(float || quantised), with the codes fixed, as in the second stage of
EfficientQAT (Chen et al. 2024), which learns scales alone; its loss here is that of distillation (Hinton et al. 2015),
with a small share of the cross entropy of the text's own tokens beside it, as there.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint as recomputed

from engine.compile.checkpoint import Checkpoint
from engine.compile.learned.blocks import LearnedBlocks
from engine.compile.learned.descent import Blocks, Learned, learn
from engine.compile.learned.network import Rotation, Weights, head_logits, head_module, layer_output, rotation
from engine.compile.learned.rates import (
    BATCH_TOKENS,
    HEAD_TOKENS,
    MODEL_RATES,
    MOST_DIVERGENCE,
    TEXT_SHARE,
    LearningRates,
)
from engine.compile.learned.tensors import check_learnable, fixed_weights, linear_modules
from engine.compile.learned.texts import TextBatch, batches, endless, parted
from engine.compile.reference_layers import LayerReader
from engine.compile.rounding.codes import BlockCodes
from engine.models.network import Network

NO_TOKEN = -100  # follows the last one of a text


def learn_scales(
    network: Network,
    checkpoint: Checkpoint,
    codes: Mapping[str, BlockCodes],
    texts: Sequence[Sequence[int]],
    *,
    with_units: Collection[str] = (),
    rounds: Sequence[LearningRates] = MODEL_RATES,
    text_share: float = TEXT_SHARE,
    advance: Callable[[int], None] = lambda _: None,
) -> Learned:
    """The codes with the scales that serve the whole model best; those given where none serve better.

    codes: by tensor name, of the layers' matrices and perhaps the head. texts: tokens. with_units: tensors whose scales
    are multiples of one unit of their output. text_share: of the cross entropy, beside all of the KL. advance: is told
    of every step. Errors are mean KL in nats on texts held back. UnsupportedModel for a network without definition in
    torch.
    """
    check_learnable(network)
    turn = rotation(network, max(map(len, texts)))
    model = _Model(network, checkpoint, codes, turn)
    reader = LayerReader(checkpoint, network, network.spec.layers)
    embedded = _embedded(network, checkpoint, texts)
    taught, held_back = (batches([*map(len, texts)], indices, BATCH_TOKENS) for indices in parted(len(texts)))
    wanted = _float_states(network, checkpoint, embedded, [*taught, *held_back], turn)
    following = [torch.tensor([*text[1:], NO_TOKEN]) for text in texts]
    reading = _Reading(model, embedded, wanted, following)
    with torch.no_grad():
        before, _ = reading.means(_fixed(codes), held_back)
    order = endless(taught, 0)

    def loss(blocks: Blocks) -> Tensor:
        batch = next(order)
        found = reading.errors(blocks, batch) / batch.tokens
        return found[0] + text_share * found[1]

    def judge(blocks: Blocks) -> float:
        divergence, surprise = reading.means(blocks, held_back)
        return divergence + text_share * surprise if divergence <= MOST_DIVERGENCE * before else math.inf

    learned = learn(codes, reader.tensor, with_units, rounds, loss, judge, advance)
    with torch.no_grad():
        after, _ = reading.means(_fixed(learned.codes), held_back)
    return Learned(learned.codes, before, after)


class _Model:
    """What stays floats of the network; layers are computed again on the way back, so that one is in memory at a time.

    codes: by tensor name, of which nothing is kept.
    """

    def __init__(
        self, network: Network, checkpoint: Checkpoint, codes: Mapping[str, BlockCodes], turn: Rotation
    ) -> None:
        self._network = network
        self._turn = turn
        readers = [LayerReader(checkpoint, network, layer) for layer in range(network.spec.layers)]
        self._layers = [fixed_weights(reader, layer, codes) for layer, reader in enumerate(readers)]
        names = [f"{network.details.names.final_norm}.weight", f"{head_module(network)}.weight"]
        reader = LayerReader(checkpoint, network, network.spec.layers)
        self._head: Weights = {name: torch.from_numpy(reader.tensor(name)) for name in names}

    def errors(self, blocks: Blocks, x: Tensor, wanted: Tensor, following: Tensor, real: Tensor) -> Tensor:
        """[2], each summed over the tokens, in nats: KL(float || this), and -log p of the token that follows.

        x [B, T, hidden]: embedded tokens. wanted [B, T, hidden]: the float model's stream behind its layers.
        following [B, T]: tokens, or `NO_TOKEN`.
        """
        for layer in range(len(self._layers)):
            x = recomputed(self._layer, blocks, layer, x, use_reentrant=False)
        pieces = -(-int(real.sum()) // HEAD_TOKENS)
        split = zip(*(torch.tensor_split(part[real], pieces) for part in (x, wanted, following)), strict=True)
        head = {**self._head, **_floats(blocks, self._head)}
        return torch.stack([recomputed(self._tokens, head, *each, use_reentrant=False) for each in split]).sum(0)

    def _layer(self, blocks: Blocks, layer: int, x: Tensor) -> Tensor:
        tensors = [f"{module}.weight" for module in linear_modules(self._network, layer)]
        weights = {**self._layers[layer], **_floats(blocks, tensors)}
        return layer_output(self._network, layer, weights, x, self._turn)

    def _tokens(self, head: Weights, found: Tensor, wanted: Tensor, following: Tensor) -> Tensor:
        with torch.no_grad():
            expected = torch.log_softmax(head_logits(self._network, self._head, wanted), -1)
        logits = torch.log_softmax(head_logits(self._network, head, found), -1)
        divergence = functional.kl_div(logits, expected, reduction="sum", log_target=True)
        return torch.stack([divergence, functional.nll_loss(logits, following, ignore_index=NO_TOKEN, reduction="sum")])


class _Reading:
    """Texts through the model. Of each: embedded and wanted [T, hidden], following [T], as of `_Model.errors`."""

    def __init__(
        self, model: _Model, embedded: Sequence[Tensor], wanted: Sequence[Tensor], following: Sequence[Tensor]
    ) -> None:
        self._model = model
        self._texts = embedded, wanted, following

    def errors(self, blocks: Blocks, batch: TextBatch) -> Tensor:
        """Of a batch's tokens together, as `_Model.errors`."""
        embedded, wanted, following = (batch.of(texts) for texts in self._texts)
        return self._model.errors(blocks, embedded, wanted, following, batch.real)

    def means(self, blocks: Blocks, given: Sequence[TextBatch]) -> tuple[float, float]:
        """The same per token."""
        total = torch.stack([self.errors(blocks, batch) for batch in given]).sum(0)
        divergence, surprise = (total / sum(batch.tokens for batch in given)).tolist()
        return divergence, surprise


def _fixed(codes: Mapping[str, BlockCodes]) -> Blocks:
    return {name: LearnedBlocks(each) for name, each in codes.items()}


def _floats(blocks: Blocks, names: Collection[str]) -> Weights:
    return {name: blocks[name].floats() for name in names if name in blocks}


def _embedded(network: Network, checkpoint: Checkpoint, texts: Sequence[Sequence[int]]) -> list[Tensor]:
    """Of each text its tokens' rows of the embedding [T, hidden]."""
    name = f"{network.details.names.embedding}.weight"
    used = sorted({token for text in texts for token in text})
    rows = np.concatenate([checkpoint.rows(name, token, token + 1) for token in used])
    return [torch.from_numpy(rows[np.searchsorted(used, text)]) for text in texts]


def _float_states(
    network: Network, checkpoint: Checkpoint, embedded: Sequence[Tensor], given: Sequence[TextBatch], turn: Rotation
) -> list[Tensor]:
    """Of each text the float model's stream behind its layers [T, hidden]; a layer's floats are in memory at a time."""
    states = list(embedded)
    with torch.no_grad():
        for layer in range(network.spec.layers):
            weights = fixed_weights(LayerReader(checkpoint, network, layer), layer, ())
            for batch in given:
                outputs = layer_output(network, layer, weights, batch.of(states), turn)
                for index, output in zip(batch.indices, outputs, strict=True):
                    states[index] = output[: len(states[index])].clone()
    return states
