"""What a source's weights compute, by the float definition."""

from collections import defaultdict

import numpy as np
import pytest

from engine.compile.calibration.forward import reference_logits
from engine.compile.calibration.layer_reader import LayerReader
from engine.compile.compilation import check_all_used
from engine.compile.sources.source import Source
from engine.compile.sources.task import names_in
from engine.models.family import read_network

TOKENS = np.random.default_rng(11).integers(0, 256, 24)
LIMIT = 1e-5  # of the largest logit


def logits_of(source: Source, tokens: np.ndarray = TOKENS) -> np.ndarray:
    """[tokens, vocab]; every tensor has been read."""
    network = read_network(source.config)
    with source.tensors() as checkpoint:
        named = names_in(checkpoint, network)
        names, spec = named.details.names, named.spec
        for name in (names.embedding, names.embedding if spec.tied_head else names.head):  # read in rows only
            checkpoint.require(f"{name}.weight", (spec.vocab, spec.hidden))
        logits = reference_logits(checkpoint, named, tokens)
        check_all_used(checkpoint, named)
    return logits


def relative_error(expected: np.ndarray, found: np.ndarray) -> float:
    """The largest difference as a share of the largest value."""
    return float(np.abs(expected - found).max() / np.abs(expected).max())


def linear_inputs(source: Source, monkeypatch: pytest.MonkeyPatch, tokens: np.ndarray = TOKENS) -> dict[str, float]:
    """For the inputs of each linear layer (its last name): how far the largest channel stands above the median one."""
    seen: dict[str, list[float]] = defaultdict(list)
    project = LayerReader.project

    def measured(reader: LayerReader, x: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
        channels = np.sqrt(np.mean(np.square(x, dtype=np.float64), axis=0))
        seen[names[-1].rpartition(".")[2]].append(float(channels.max() / np.median(channels)))
        return project(reader, x, names)

    with monkeypatch.context() as patch:
        patch.setattr(LayerReader, "project", measured)
        logits_of(source, tokens)
    return {name: float(np.median(ratios)) for name, ratios in seen.items()}
