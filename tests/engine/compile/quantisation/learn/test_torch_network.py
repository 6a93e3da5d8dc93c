"""The definition in torch against the one in numpy, for every family, and its gradients against finite differences."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import Tensor

from engine.compile.calibration.forward import reference_logits
from engine.compile.calibration.layer_reader import LayerReader
from engine.compile.quantisation.learn.torch_network import (
    check_learnable,
    fixed_weights,
    head_logits,
    head_module,
    layer_output,
    rotation,
)
from engine.compile.sources.checkpoint import Checkpoint
from engine.compile.sources.source import FolderSource
from engine.errors import UnsupportedModel
from engine.models.family import read_network
from engine.models.network import Network, WeightNames
from tests.engine.compile.check.test_transformers_parity import CASES
from tests.hybrid import make_hybrid

LIMIT = 1e-5  # of the largest logit
TEXTS = [np.random.default_rng(seed).integers(0, 256, count) for seed, count in enumerate((24, 9, 17))]


@pytest.mark.parametrize("case", CASES)
def test_logits_of_each_family(case: str, make_oracle: Callable[..., tuple[Any, Path]]) -> None:
    family, changes = CASES[case]
    _, folder = make_oracle(family, **changes)
    source = FolderSource(folder)
    network = read_network(source.config)
    with source.tensors() as checkpoint:
        check_logits(checkpoint, network)


def test_logits_of_gated_heads_with_a_norm_offset(tmp_path: Path) -> None:
    """A hybrid's one attention layer, as a network by itself."""
    make_hybrid(tmp_path, num_hidden_layers=4)
    source = FolderSource(tmp_path)
    hybrid = read_network(source.config)
    assert hybrid.details.has_output_gate
    assert hybrid.spec.attention_layers == (3,)
    names = hybrid.details.names
    values = {item.name: at_layer(getattr(names, item.name), 3) for item in fields(names)}
    details = replace(hybrid.details, names=WeightNames(**values))
    network = replace(hybrid, details=details, spec=msgspec.structs.replace(hybrid.spec, layers=1, recurrent=None))
    with source.tensors() as checkpoint:
        check_logits(checkpoint, network)


def test_recurrent_layers_and_blocks_are_refused_by_name(tmp_path: Path) -> None:
    make_hybrid(tmp_path, num_hidden_layers=4)
    with pytest.raises(UnsupportedModel, match=r"recurrent layers \(qwen3_5\)"):
        check_learnable(read_network(FolderSource(tmp_path).config))


def test_gradients_are_finite_differences(make_oracle: Callable[..., tuple[Any, Path]]) -> None:
    """Of all that a layer is made of, in double precision."""
    sizes = {"hidden_size": 8, "intermediate_size": 6, "num_attention_heads": 2, "num_key_value_heads": 1}
    _, folder = make_oracle("Qwen3", head_dim=4, num_hidden_layers=1, attention_bias=True, **sizes)
    source = FolderSource(folder)
    network = read_network(source.config)
    with source.tensors() as checkpoint:
        weights = fixed_weights(LayerReader(checkpoint, network, 0), 0, ())
    x = torch.randn(2, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    cos, sin = (table.double() for table in rotation(network, 3))

    def output(*values: Tensor) -> Tensor:
        return layer_output(network, 0, dict(zip(weights, values, strict=True)), x, (cos, sin))

    assert torch.autograd.gradcheck(output, [each.double().requires_grad_() for each in weights.values()])


def check_logits(checkpoint: Checkpoint, network: Network) -> None:
    """Texts of different lengths, side by side and padded, against each alone."""
    for text, found in zip(TEXTS, logits_of(checkpoint, network), strict=True):
        expected = reference_logits(checkpoint, network, text)
        assert np.abs(found - expected).max() / np.abs(expected).max() < LIMIT


def logits_of(checkpoint: Checkpoint, network: Network) -> list[np.ndarray]:
    names = network.details.names
    table = torch.from_numpy(whole(checkpoint, f"{names.embedding}.weight"))
    x = torch.nn.utils.rnn.pad_sequence([table[torch.from_numpy(text)] for text in TEXTS], batch_first=True)
    turn = rotation(network, x.shape[1])
    for layer in range(network.spec.layers):
        x = layer_output(network, layer, fixed_weights(LayerReader(checkpoint, network, layer), layer, ()), x, turn)
    last = [f"{names.final_norm}.weight", f"{head_module(network)}.weight"]
    logits = head_logits(network, {name: torch.from_numpy(whole(checkpoint, name)) for name in last}, x)
    return [found[: len(text)].numpy() for found, text in zip(logits, TEXTS, strict=True)]


def whole(checkpoint: Checkpoint, name: str) -> np.ndarray:
    return checkpoint.tensor(name, checkpoint.shape(name))


def at_layer(names: str | tuple[str, ...], layer: int) -> str | tuple[str, ...]:
    if isinstance(names, tuple):
        return tuple(name.format(layer=layer) for name in names)
    return names.format(layer=layer)
