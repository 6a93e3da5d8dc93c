"""Several streams in numpy (AltUp), and the path of low rank beside attention (LAuReL).

Shapes: T tokens, S streams [T, S, hidden].
"""

import math
from collections.abc import Callable

import numpy as np

from engine.compile.calibration.layer_reader import LayerReader
from engine.compile.sources.checkpoint import Float32
from engine.models.streams import AltUp


def altup_of(reader: LayerReader) -> AltUp:
    """Of a network that has several streams."""
    altup = reader.network.details.altup
    assert altup is not None
    return altup


def spread(reader: LayerReader, x: Float32) -> Float32:
    """Embedded tokens [T, hidden] as streams: themselves, and others made as large."""
    others = [reader.project(x, (name,)) for name in altup_of(reader).spreading]
    return np.stack([x, *(_as_large(other, x) for other in others)], axis=1)


def predicted(reader: LayerReader, streams: Float32) -> Float32:
    """What a layer takes the streams for."""
    shares = reader.project(_shares(reader, streams[:, 0]), (altup_of(reader).prediction,))
    count = streams.shape[1]
    return np.asarray(streams + shares.reshape(-1, count, count) @ streams, np.float32)


def with_path(reader: LayerReader, x: Float32, normed: Float32) -> Float32:
    """x [T, hidden] behind attention, which took `normed` -> both paths together."""
    altup = altup_of(reader)
    path = reader.project(reader.project(normed, (altup.left,)), (altup.right,))
    both = x + normed + reader.normed(path, altup.path_norm)
    return np.asarray(both / np.float32(math.sqrt(2)), np.float32)


def corrected(reader: LayerReader, streams: Float32, x: Float32, of_inputs: Callable[[Float32], Float32]) -> Float32:
    """Predicted streams and x [T, hidden], which a layer made of the first -> the streams behind the layer.

    of_inputs: what it adds to all but the first, of the first [T, hidden].
    """
    altup = altup_of(reader)
    shares = reader.project(_shares(reader, x), (altup.correction,)) + np.float32(1)
    behind = streams + shares[:, :, None] * (x - streams[:, 0])[:, None]
    behind[:, 1:] += of_inputs(behind[:, 0] * reader.tensor(altup.scale))[:, None]
    return np.asarray(behind, np.float32)


def merged(reader: LayerReader, streams: Float32) -> Float32:
    """What the last norm takes [T, hidden]."""
    first = streams[:, 0]
    others = [reader.project(streams[:, 1 + index], (name,)) for index, name in enumerate(altup_of(reader).merging)]
    return np.asarray(np.mean([first, *(_as_large(other, first) for other in others)], axis=0), np.float32)


def _shares(reader: LayerReader, x: Float32) -> Float32:
    altup = altup_of(reader)
    asked = reader.normed(x, altup.router_norm) / np.float32(x.shape[-1])
    return np.tanh(reader.project(asked, (altup.router,)))


def _as_large(x: Float32, target: Float32) -> Float32:
    """x with the mean square of `target`."""
    wanted, found = (np.mean(np.square(each), axis=-1, keepdims=True) for each in (target, x))
    return np.asarray(x * np.sqrt(wanted) / np.sqrt(np.maximum(found, np.float32(1e-5))), np.float32)
