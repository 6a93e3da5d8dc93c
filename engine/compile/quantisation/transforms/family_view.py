"""A checkpoint as its family reads it: under the family's names, with the constants of its outputs in its matrices."""

import numpy as np

from engine.compile.quantisation.transforms.rotation import Edits, LinearEdit
from engine.compile.quantisation.transforms.transformed import TransformedCheckpoint
from engine.compile.sources.checkpoint import Checkpoint, CheckpointView
from engine.models.network import FOLLOWING, FamilyDetails, Network

LAYERS = "layers."


class BlockNames(CheckpointView):
    """A checkpoint that numbers what layers have as `FamilyDetails.blocks` says."""

    def __init__(self, inner: Checkpoint, details: FamilyDetails) -> None:
        super().__init__(inner)
        self._blocks, self._first = details.blocks, details.roots[0]
        known = (root for root in details.roots if f"{self._under(root, details.names.embedding)}.weight" in inner)
        self._root = next(known, self._first)

    def stored(self, name: str) -> str:
        """Under its block's number and the checkpoint's root."""
        before, found, rest = self._under(self._root, name).partition(LAYERS)
        if not found:
            return before
        layer, _, rest = rest.partition(".")
        block = self._blocks[int(layer)][rest.startswith(FOLLOWING)]
        return f"{before}{LAYERS}{block}.{rest.removeprefix(FOLLOWING)}"

    def _under(self, root: str, name: str) -> str:
        return root + name.removeprefix(self._first) if name.startswith(self._first) else name


def family_view(checkpoint: Checkpoint, network: Network) -> Checkpoint:
    """The checkpoint itself where the family has neither other names nor constants."""
    details = network.details
    if details.blocks:
        checkpoint = BlockNames(checkpoint, details)
    linears: dict[str, LinearEdit] = {}
    for layer in range(network.spec.layers):
        for module, runs in details.factors.items():
            name = module.format(layer=layer)
            scale = np.ones(checkpoint.shape(f"{name}.weight")[0])
            for start, factor in runs:
                scale[start:] = factor
            linears[name] = LinearEdit(output_scale=scale)
    return TransformedCheckpoint(checkpoint, Edits(linears=linears)) if linears else checkpoint
