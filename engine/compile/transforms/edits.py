"""What a transform does to single tensors. W [outputs, inputs] stands for a matrix, b [outputs] for its bias."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from engine.compile.transforms.hadamard import Float64
from engine.compile.transforms.rotation import Rotation


@dataclass(frozen=True, slots=True)
class NormEdit:
    """Of the scale g of a norm: g times `scale` [size], or 1 where it is folded into the matrices that read."""

    scale: Float64 | None = None


@dataclass(frozen=True, slots=True)
class LinearEdit:
    """Of a matrix and its bias, in the order of the fields; None and "" = not.

    source: module whose matrix it is made of, for one that the checkpoint does not store. norm: module of the norm
    whose scale is multiplied into the inputs. input_scale [inputs], output_scale [outputs]: factors. input_rotation:
    W R, as inputs come turned. output_rotation: Rᵀ W and b R, so that outputs leave turned. Both act on blocks of the
    rotation's size, that of outputs only from `first_output` on, which is a multiple of the size.
    """

    source: str = ""
    norm: str = ""
    input_scale: Float64 | None = None
    output_scale: Float64 | None = None
    input_rotation: Rotation | None = None
    output_rotation: Rotation | None = None
    first_output: int = 0

    @property
    def changes_outputs(self) -> bool:
        """Whether `outputs` does anything."""
        return self.output_scale is not None or self.output_rotation is not None

    def inputs(self, rows: Float64, norm_scale: Float64 | None) -> Float64:
        """What becomes of rows [some outputs, inputs] of W along their inputs."""
        for scale in (norm_scale, self.input_scale):
            rows = rows if scale is None else rows * scale
        return rows if self.input_rotation is None else self.input_rotation.turn(rows)

    def outputs(self, rows: Float64, start: int) -> Float64:
        """What becomes of outputs start.. of W [some outputs, inputs] or b [some outputs]: whole blocks (`bounds`)."""
        if self.output_scale is not None:
            rows = (rows.T * self.output_scale[start : start + len(rows)]).T
        if self.output_rotation is None:
            return rows
        kept = min(max(self.first_output - start, 0), len(rows))
        turned = self.output_rotation.turn(np.ascontiguousarray(rows[kept:].T))
        return np.concatenate([rows[:kept], turned.T])

    def bounds(self, start: int, stop: int, outputs: int) -> tuple[int, int]:
        """The outputs that outputs start..stop are made of."""
        if self.output_rotation is None or stop <= self.first_output:
            return start, stop
        size, first = self.output_rotation.size, self.first_output
        low = start if start < first else first + (start - first) // size * size
        return low, min(first + -((first - stop) // size) * size, outputs)


@dataclass(frozen=True, slots=True)
class Edits:
    """Of a whole network: norms and linear layers (the embedding table is one, [vocab, hidden]) by module."""

    norms: Mapping[str, NormEdit] = field(default_factory=dict)
    linears: Mapping[str, LinearEdit] = field(default_factory=dict)

    def scaled(self, factors: "Edits") -> "Edits":
        """These of what `factors` made of the tensors: they have scales alone, on modules that have none here."""
        linears = dict(self.linears)
        for module, edit in factors.linears.items():
            linears[module] = replace(
                linears.get(module, LinearEdit()), input_scale=edit.input_scale, output_scale=edit.output_scale
            )
        return Edits({**factors.norms, **self.norms}, linears)
