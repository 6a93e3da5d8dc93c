"""The matrices that low-rank adapters (LoRA) may change while a bundle is served, as its manifest lists them."""

from typing import Annotated

import msgspec
from msgspec import Meta

from engine.bundle.bounds import Name, Scale

Width = Annotated[int, Meta(ge=1, le=1 << 24)]
LAYER = "{layer}"
STARTING = "qkv"  # the linear layer that a part starts its layer with; the others end the layer before


class LoraModule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A matrix [outputs, inputs] of the checkpoint. path: its name there, `{layer}` stands for the layer's index.

    linear: the linear layer of the graphs that it is, or is stacked into. The first `scaled_outputs` of its outputs
    were multiplied by `scale` when the bundle was compiled.
    """

    path: Name
    linear: Name
    inputs: Width
    outputs: Width
    scaled_outputs: Annotated[int, Meta(ge=0, le=1 << 24)] = 0
    scale: Scale = 1.0

    @property
    def name(self) -> str:
        """The last part of the path, as adapters name what they target."""
        return self.path.rpartition(".")[2]

    @property
    def starts_layer(self) -> bool:
        """Whether it lies before the layer's attention."""
        return self.linear == STARTING

    def in_layer(self, layer: int) -> str:
        """The path in one layer."""
        return self.path.replace(LAYER, str(layer))
