"""Rounding and scales of one layer, learned so that its output matches that of the float layer.

The layer reads the stream that the quantised layers before it give and is to hand on what the float network would: so
it makes good a part of what they lost. As block-wise reconstruction in BRECQ (Li et al. 2021) and AutoRound (Cheng et
al. 2023).
"""

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from engine.compile.checkpoint import Float32
from engine.compile.learned.descent import Blocks, Learned, learn
from engine.compile.learned.network import layer_output, rotation
from engine.compile.learned.rates import BATCH_TOKENS, LAYER_RATES, LearningRates
from engine.compile.learned.tensors import check_learnable, fixed_weights
from engine.compile.learned.texts import TextBatch, batches, endless, parted
from engine.compile.reference_layers import LayerReader
from engine.compile.rounding.codes import BlockCodes
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
