"""The file of the convolutions of recurrent layers, which the graph that all those layers share takes as an input.

Legend: R = recurrent layers, C = channels, W = kernel.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.float_file import check_floats, read_floats
from engine.bundle.manifest import Manifest
from engine.bundle.recurrent import RecurrentSpec
from engine.errors import BundleError

CONV_WEIGHTS = "conv_weights.f32"


def conv_shape(spec: RecurrentSpec) -> tuple[int, int, int]:
    """[R, C, W]."""
    return len(spec.layers), spec.channels, spec.kernel


def check_conv_weights(manifest: Manifest) -> None:
    """BundleError unless a model with recurrent layers, and no other, has a listed file of the size it wants."""
    name, spec = manifest.conv_weights, manifest.model.recurrent
    if bool(name) != (spec is not None):
        raise BundleError(f"a model {'without' if spec is None else 'with'} recurrent layers has conv_weights {name!r}")
    if spec is not None:
        check_floats(manifest, name, conv_shape(spec), "the model's convolutions take")


def read_conv_weights(folder: Path, manifest: Manifest) -> NDArray[np.float32]:
    """Weights [R, C, W]. BundleError when the file is not what the model wants."""
    check_conv_weights(manifest)
    assert manifest.model.recurrent is not None
    weights = read_floats(folder, manifest, manifest.conv_weights, conv_shape(manifest.model.recurrent))
    if not np.isfinite(weights).all():
        raise BundleError(f"{manifest.conv_weights} holds numbers that are not finite")
    return weights


def write_conv_weights(folder: Path, weights: NDArray[np.float32]) -> None:
    """Write weights [R, C, W] into the folder."""
    (folder / CONV_WEIGHTS).write_bytes(weights.astype("<f4").tobytes())
