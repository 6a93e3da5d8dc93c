"""Rows of a step that images or given numbers take the place of, and rows that the host looks up for every token.
Graphs of GenieX bundles take embeddings in place of token ids. Where an image has a grid, rows turn by its axes.
Shapes: N = rows of a step, M = some of them, H = hidden size."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest
from engine.bundle.specs import TableSpec
from engine.bundle.tensors import EMBEDS, LAYER_EMBEDS, Array, Encoding
from engine.bundle.weight_files import check_table
from engine.errors import BundleError
from engine.files import confined, reading
from engine.request import PromptImage, Request


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


Axes = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class EmbeddedRows:
    """rows: int64 [M], of the step. values: float32 [M, H], with those of DeepStack [M, (1 + layers) * H]."""

    rows: NDArray[np.int64]
    values: NDArray[np.float32]

    def write(self, hidden: Array, encoding: Encoding) -> None:
        """Put them in the place of what the embedding graph made of the rows' token ids: [1, N, H]."""
        hidden[0, self.rows] = encoding.encode(self.values[:, : hidden.shape[-1]].astype(np.float64))

    def write_deep(self, layer: int, deep: Array, encoding: Encoding) -> None:
        """Put what DeepStack adds behind a layer into deep [T, H], in the order of the rows."""
        begin, count = (1 + layer) * deep.shape[-1], len(self.rows)
        values = self.values[np.argsort(self.rows), begin : begin + deep.shape[-1]]
        deep[:count] = encoding.encode(values.astype(np.float64)) if values.shape[1] else encoding.encode(np.zeros(1))


def prompt_rows(embeds: bytes, tokens: int, first: int, count: int) -> NDArray[np.float32]:
    """Of a prompt of `tokens` rows those from position `first` on, at most `count`: [0 to count, H]."""
    return np.frombuffer(embeds, "<f4").reshape(tokens, -1)[first : first + count]


def image_rows(request: Request, row: int, first: int, count: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Of rows from `row` on, which are `count` tokens from position `first` on, those that images give: runs of them
    by their first row, each [run, H]."""
    for image in request.images:
        start, end = max(first, image.first), min(first + count, image.first + image.tokens)
        if start < end:
            values = np.frombuffer(image.features, "<f4").reshape(image.tokens, -1)
            yield row + start - first, values[start - image.first : end - image.first]


def joined(found: Sequence[tuple[int, NDArray[np.float32]]]) -> EmbeddedRows | None:
    """Runs of rows, each from its first row on; None when there is none. Narrow ones get zeros."""
    if not found:
        return None
    rows = [np.arange(start, start + len(values)) for start, values in found]
    width = max(values.shape[1] for _, values in found)
    wide = [np.pad(values, ((0, 0), (0, width - values.shape[1]))) for _, values in found]
    return EmbeddedRows(np.concatenate(rows), np.concatenate(wide))


def axes_of(positions: Axes, groups: Iterable[tuple[slice, Sequence[PromptImage]]]) -> Axes | None:
    """What rows turn by, time, row and column [3, N], where an image has a grid; None where none has.
    positions: int32 [N], indices of tokens. groups: rows of a sequence, and its images by `first`."""
    axes: Axes | None = None
    for rows, images in groups:
        if any(image.grid[0] for image in images):
            axes = np.stack([positions] * 3) if axes is None else axes
            axes[:, rows] = _by_axis(positions[rows], images)
    return axes


def _by_axis(indices: Axes, images: Sequence[PromptImage]) -> Axes:
    """An image's tokens are where it begins, plus 0, row and column (transformers `get_rope_index`)."""
    axes = np.stack([indices] * 3)
    for image in images:
        rows, columns = image.grid
        if rows:
            offset = indices - image.first
            inside, behind = (offset >= 0) & (offset < image.tokens), offset >= image.tokens
            for axis, place in enumerate((np.zeros_like(offset), offset // columns, offset % columns)):
                axes[axis, inside] += (place - offset)[inside]
            axes[:, behind] -= image.tokens - max(rows, columns)
    return axes
