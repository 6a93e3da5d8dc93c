"""Linear layers behind the pooling (`Dense` of sentence-transformers), folded into one, and its file.

Shapes: H numbers of a pooled vector, X of one behind the layers.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.compile.sources.checkpoint import Checkpoint, SafetensorsCheckpoint
from engine.compile.sources.task import SentenceFiles
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief
from engine.models.config_fields import ConfigFields

DENSE = "Dense"
IDENTITY = "Identity"  # the activation that leaves layers linear
MOST_OUTPUTS = 1 << 16
Float64 = NDArray[np.float64]
Layer = tuple[Float64, Float64]  # weight [X, inputs], bias [X]


STORED = ("dense_2.weight", "dense_3.weight")  # of GGUF files, without a bias


def folded_layers(files: SentenceFiles, checkpoint: Checkpoint, hidden: int) -> Layer | None:
    """The layers one behind the other as one [X, H], None where there are none; products in double precision.

    UnsupportedModel for an activation between them, CompileError for a layer that does not fit the one before.
    """
    folded: Layer | None = None
    for (kind, config), folder in zip(files.modules, files.folders, strict=True):
        if kind != DENSE:
            continue
        folded = _behind(folded, _layer(folder, config, hidden if folded is None else len(folded[0])))
    for name in STORED:
        if name in checkpoint:
            outputs = checkpoint.shape(name)[0]
            weight = checkpoint.tensor(name, (outputs, hidden if folded is None else len(folded[0])))
            folded = _behind(folded, (weight.astype(np.float64), np.zeros(outputs)))
    return folded


def _behind(first: Layer | None, second: Layer) -> Layer:
    weight, bias = second
    return second if first is None else (weight @ first[0], weight @ first[1] + bias)


def write_layer(layer: Layer, path: Path) -> None:
    """Little-endian float32: the weight [X, H], then the bias [X]."""
    path.write_bytes(np.concatenate([layer[0].reshape(-1), layer[1]]).astype("<f4").tobytes())


def _layer(folder: Path, config: Mapping[str, object], inputs: int) -> Layer:
    fields = ConfigFields(config, f"{folder.name}/config.json")
    activation = fields.text("activation_function", "torch.nn.modules.activation.Tanh")
    if activation.rpartition(".")[2] != IDENTITY:
        raise UnsupportedModel(f"{folder.name}: activation {brief(activation)} is not supported (supported: Identity)")
    if fields.integer("in_features", 1, MOST_OUTPUTS) != inputs:
        raise CompileError(f"{folder.name}/config.json: in_features must be {inputs}, the width of what comes before")
    outputs = fields.integer("out_features", 1, MOST_OUTPUTS)
    with SafetensorsCheckpoint(folder) as tensors:
        weight = tensors.tensor("linear.weight", (outputs, inputs))
        has_bias = fields.flag("bias", True)
        bias = tensors.tensor("linear.bias", (outputs,)) if has_bias else np.zeros(outputs, np.float32)
    return weight.astype(np.float64), bias.astype(np.float64)
