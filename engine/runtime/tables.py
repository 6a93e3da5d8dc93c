"""Rows that the host looks up for every token: graphs of GenieX bundles take embeddings in place of token ids."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.specs import TableSpec
from engine.bundle.tensors import EMBEDS, LAYER_EMBEDS, Array, Encoding
from engine.bundle.weight_files import check_table
from engine.errors import BundleError
from engine.files import confined, reading


class TokenTable:
    """A table [tokens, width] that stays on disk: a step reads the rows of its tokens."""

    def __init__(self, path: Path, spec: TableSpec) -> None:
        self._encoding = Encoding(spec.dtype, spec.scale or 1.0, spec.zero_point or 0)
        try:
            self._rows: Array = np.memmap(path, np.dtype(spec.dtype).newbyteorder("<"), "r").reshape(-1, spec.width)
        except (OSError, ValueError) as error:
            raise BundleError(f"{spec.file} cannot be read as rows of {spec.width} numbers: {error}") from error

    def fill(self, ids: NDArray[np.int32], out: Array, encoding: Encoding) -> None:
        """Write the rows of `ids` [N] into out [N, width], in the graph's encoding."""
        rows = np.take(self._rows, ids, axis=0, mode="clip")
        if encoding != self._encoding:
            rows = encoding.encode(self._encoding.decode(rows).astype(np.float64))
        out[...] = rows


Tables = dict[str, TokenTable]


def open_tables(folder: Path, manifest: Manifest) -> Tables:
    """The tables of a bundle by the names of the tensors that take their rows. BundleError names the file."""
    found: Tables = {}
    for spec, names in ((manifest.embedding, EMBEDS), (manifest.layer_embedding, (LAYER_EMBEDS,))):
        if spec is None:
            continue
        check_table(manifest, spec)
        with reading(spec.file):
            table = TokenTable(confined(folder, spec.file), spec)
        found |= dict.fromkeys(names, table)
    return found
