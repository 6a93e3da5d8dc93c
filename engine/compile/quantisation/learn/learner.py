"""What `--quality best` adds to chosen codes: each layer's learned, then all scales end to end.

The layer reads the stream that the quantised layers before it give and is to hand on what the float network would: so
it makes good a part of what they lost. As block-wise reconstruction in BRECQ (Li et al. 2021) and AutoRound (Cheng et
al. 2023).

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

from engine.compile.calibration.layer_reader import LayerReader
from engine.compile.progress import ProgressSink
from engine.compile.quantisation.learn.descent import (
    Blocks,
    Learned,
    LearnedBlocks,
    TextBatch,
    batches,
    endless,
    learn,
    parted,
)
from engine.compile.quantisation.learn.learning_plan import (
    BATCH_TOKENS,
    HEAD_TOKENS,
    LAYER_RATES,
    MODEL_RATES,
    MOST_DIVERGENCE,
    TEXT_SHARE,
    LearningPlan,
    LearningRates,
)
from engine.compile.quantisation.learn.torch_network import (
    Rotation,
    Weights,
    check_learnable,
    fixed_weights,
    head_logits,
    head_module,
    layer_output,
    linear_modules,
    rotation,
)
from engine.compile.quantisation.rounding.codes import BlockCodes
from engine.compile.sources.checkpoint import Checkpoint, Float32
from engine.models.network import Network


def learn_layer(
    network: Network,
    reader: LayerReader,
    layer: int,
    codes: Mapping[str, BlockCodes],
    inputs: Sequence[Float32],
    targets: Sequence[Float32],
    *,
    with_units: Collection[str] = (),
    rounds: Sequence[LearningRates] = LAYER_RATES,
    advance: Callable[[int], None] = lambda _: None,
) -> Learned:
    """The codes of the layer's matrices, by tensor name, learned; those given where they are no better.

    inputs, targets: of each text [T, hidden], the quantised stream before the layer and the float stream behind it.
    with_units: tensors whose scales are multiples of one unit of their output. advance: is told of every step. Errors
    are shares of the targets' squares. UnsupportedModel for a network without definition in torch.
    """
    check_learnable(network)
    fixed = fixed_weights(reader, layer, codes)
    streams = [[torch.from_numpy(text) for text in texts] for texts in (inputs, targets)]
    lengths = [len(text) for text in inputs]
    turn = rotation(network, max(lengths))
    size = sum(float(text.square().sum()) for text in streams[1]) / sum(lengths)
    taught, held_back = (batches(lengths, indices, BATCH_TOKENS) for indices in parted(len(inputs)))

    def errors(blocks: Blocks, batch: TextBatch) -> Tensor:
        """Summed over the batch's tokens."""
        weights = fixed | {name: each.floats() for name, each in blocks.items()}
        found = layer_output(network, layer, weights, batch.of(streams[0]), turn)
        return (found - batch.of(streams[1]))[batch.real].square().sum() / size

    order = endless(taught, layer)

    def loss(blocks: Blocks) -> Tensor:
        batch = next(order)
        return errors(blocks, batch) / batch.tokens

    def judge(blocks: Blocks) -> float:
        return sum(float(errors(blocks, batch)) for batch in held_back) / sum(batch.tokens for batch in held_back)

    return learn(codes, reader.tensor, with_units, rounds, loss, judge, advance)


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


class TorchLearner:
    """Learns as `plan` says. with_units: tensors whose scales are multiples of one unit of their output.

    errors: before and after on texts held back, by "layer N" as a share of the squares of what the layer hands on, and
    "KL", the mean over tokens in nats.
    """

    def __init__(
        self,
        network: Network,
        plan: LearningPlan,
        with_units: Collection[str],
        progress: ProgressSink,
    ) -> None:
        self.errors: dict[str, tuple[float, float]] = {}
        self._network = network
        self._plan = plan
        self._with_units = with_units
        self._progress = progress

    def layer(
        self,
        reader: LayerReader,
        layer: int,
        codes: Mapping[str, BlockCodes],
        inputs: Sequence[Float32],
        targets: Sequence[Float32],
    ) -> Mapping[str, BlockCodes]:
        """Of one layer: see `learn_layer`."""
        if not self._plan.layers:
            return {}
        learned = learn_layer(
            self._network,
            reader,
            layer,
            codes,
            inputs,
            targets,
            with_units=self._with_units,
            rounds=self._plan.layers,
            advance=self._progress.advance,
        )
        self.errors[f"layer {layer}"] = learned.before, learned.after
        return learned.codes

    def model(
        self, checkpoint: Checkpoint, codes: Mapping[str, BlockCodes], texts: Sequence[Sequence[int]]
    ) -> Mapping[str, BlockCodes]:
        """Of all: see `learn_scales`."""
        if not self._plan.model:
            return {}
        self._progress.stage("scales end to end", sum(rates.steps for rates in self._plan.model), "steps")
        learned = learn_scales(
            self._network,
            checkpoint,
            codes,
            texts,
            with_units=self._with_units,
            rounds=self._plan.model,
            advance=self._progress.advance,
        )
        self.errors["KL"] = learned.before, learned.after
        return learned.codes
