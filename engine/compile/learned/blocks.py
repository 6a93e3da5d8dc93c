"""The codes and scales of a matrix as numbers that gradients move.

A weight is (code - zero) * scale. Its code is the rounding of a place, a number that is learned: the gradient passes
the rounding as if it were not there (the straight-through estimator, Bengio et al. 2013), and a place starts where the
float weight lies, as far as the given code allows. That is SignRound's offset (AutoRound, Cheng et al. 2023) counted
from the given codes. Scales are multiplied by a power of e, so that none changes its sign.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from engine.compile.quantization.blocks import INT4_MIDDLE, Float32
from engine.compile.rounding.codes import HIGHEST, BlockCodes, BlockScales, in_blocks

# Nearer to the border of two codes than this no place starts: a first small step turns no code.
BORDER = 0.05


class LearnedBlocks:
    """A matrix given as codes. weight [outputs, inputs]: the floats, to learn codes too; None = codes stay.

    one_gain: all scales of an output share a factor, so that they stay multiples of one unit (LPBQ). gains [outputs,
    blocks], or [outputs, 1]: the factors' logarithms. places [outputs, blocks, block]: what rounds to the codes.
    """

    def __init__(self, given: BlockCodes, weight: Float32 | None = None, one_gain: bool = False) -> None:
        self._given = given
        outputs, blocks = given.grid.scales.shape
        self._codes = torch.from_numpy(given.codes)
        self._scales = torch.from_numpy(given.grid.scales)
        zeros = given.grid.zeros
        self._zeros = torch.tensor(float(INT4_MIDDLE)) if zeros is None else torch.from_numpy(zeros)[:, :, None].float()
        self.gains = torch.zeros(outputs, 1 if one_gain else blocks, requires_grad=True)
        self.places = None if weight is None else self._places(weight).requires_grad_()

    def floats(self) -> Tensor:
        """The weights [outputs, inputs] that codes and scales stand for, with gradients."""
        scales = self._scales * torch.exp(self.gains)
        values = (self._rounded() - self._zeros) * scales[:, :, None]
        return values.reshape(len(values), -1)[:, : self._given.inputs]

    def learned(self) -> BlockCodes:
        """As they are now, in the layout they were given in."""
        with torch.no_grad():
            scales = (self._scales * torch.exp(self.gains)).numpy()
            codes = self._given.codes if self.places is None else self._rounded().numpy().astype(np.uint8)
        return BlockCodes(
            codes, BlockScales(scales, self._given.grid.zeros, self._given.grid.block), self._given.inputs
        )

    def parameters(self) -> Iterator[Tensor]:
        """What is learned."""
        yield self.gains
        if self.places is not None:
            yield self.places

    def _places(self, weight: Float32) -> Tensor:
        """Where the weights lie among the codes, but nowhere that another code would come of it."""
        codes = self._codes.float()
        wanted = torch.from_numpy(in_blocks(weight, self._given.grid.block)) / self._scales[:, :, None] + self._zeros
        return torch.clamp(wanted, codes - (0.5 - BORDER), codes + (0.5 - BORDER)).clamp(0, HIGHEST)

    def _rounded(self) -> Tensor:
        if self.places is None:
            return self._codes.float()
        return self.places + (self.places.round().clamp(0, HIGHEST) - self.places).detach()
