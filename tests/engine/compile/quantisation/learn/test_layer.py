"""A layer of the embedded model learns to make good what its rounding lost; what it gives fits the layer's form."""

import numpy as np
import torch

from engine.compile.calibration.layer_reader import LayerReader
from engine.compile.quantisation.learn.learner import learn_layer
from engine.compile.quantisation.learn.learning_plan import LearningRates
from engine.compile.quantisation.learn.torch_network import fixed_weights, layer_output, linear_modules, rotation
from engine.compile.quantisation.rounding.codes import BlockCodes, Coding, extreme_scales, rounded
from engine.compile.sources.checkpoint import Checkpoint
from engine.compile.sources.source import open_source
from engine.demo.location import demo_folder
from engine.models.family import read_network
from engine.models.network import Network

LENGTHS = (30, 12, 21, 30, 17, 26, 9, 14)
ROUNDS = (LearningRates(steps=8, scales=5e-3, places=0.0), LearningRates(steps=8, scales=5e-3, places=2e-3))


def test_the_layers_output_comes_nearer_on_texts_that_were_held_back() -> None:
    source = open_source(demo_folder())
    network = read_network(source.config)
    with source.tensors() as checkpoint:
        reader = LayerReader(checkpoint, network, 0)
        codes = nearest(reader, network)
        inputs = states(network, checkpoint, LENGTHS, 1)
        targets = [outputs(reader, x, {}) for x in inputs]
        steps: list[int] = []
        learned = learn_layer(network, reader, 0, codes, inputs, targets, rounds=ROUNDS, advance=steps.append)
        assert sum(steps) == 16
        assert learned.codes.keys() == codes.keys()
        assert all(learned.codes[name].codes.shape == codes[name].codes.shape for name in codes)
        # Texts that neither side of the learning has seen.
        unseen = states(network, checkpoint, LENGTHS, 2)
        wanted = [outputs(reader, x, {}) for x in unseen]
        before, after = (error(reader, unseen, wanted, each) for each in (codes, learned.codes))
    assert learned.after < 0.95 * learned.before
    assert after < 0.97 * before


def nearest(reader: LayerReader, network: Network) -> dict[str, BlockCodes]:
    found = {}
    for name in (f"{module}.weight" for module in linear_modules(network, 0)):
        weight = reader.tensor(name)
        found[name] = rounded(weight, extreme_scales(weight, 32, Coding.SYMMETRIC))
    return found


def states(network: Network, checkpoint: Checkpoint, lengths: tuple[int, ...], seed: int) -> list[np.ndarray]:
    """Embedded tokens of random texts."""
    name = f"{network.details.names.embedding}.weight"
    table = checkpoint.tensor(name, checkpoint.shape(name))
    rng = np.random.default_rng(seed)
    return [table[rng.integers(0, len(table), length)] for length in lengths]


def outputs(reader: LayerReader, x: np.ndarray, codes: dict[str, BlockCodes]) -> np.ndarray:
    weights = fixed_weights(reader, 0, codes) | {n: torch.from_numpy(c.floats()) for n, c in codes.items()}
    turn = rotation(reader.network, len(x))
    return layer_output(reader.network, 0, weights, torch.from_numpy(x)[None], turn)[0].numpy()


def error(
    reader: LayerReader, inputs: list[np.ndarray], wanted: list[np.ndarray], codes: dict[str, BlockCodes]
) -> float:
    found = (outputs(reader, x, codes) for x in inputs)
    return sum(float(np.square(a - b).sum()) for a, b in zip(found, wanted, strict=True))
