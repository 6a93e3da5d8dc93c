"""Streams against the float definition, whose layers are computed text by text; errors; what is in memory."""

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.compile.calibration.forward import reference_hidden
from engine.compile.calibration.layer_reader import LayerReader, norm
from engine.compile.quantisation.choose.matrices import DOWN, GATE_UP, HEAD, OUTPUT, QKV, groups_of, head_tensor
from engine.compile.sources.checkpoint import SafetensorsCheckpoint
from engine.compile.sources.source import FolderSource, Source
from engine.models.family import read_network
from tests.engine.compile.quantisation.choose.texts import ROWS, choose, coded, random_texts
from tests.engine.compile.quantisation.transforms.rotated_source import rotated
from tests.hybrid import make_hybrid

MakeOracle = Callable[..., tuple[Any, Path]]
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    "Mistral": {"sliding_window": None},
    "Qwen2": {"tie_word_embeddings": True},
    "Qwen3": {"head_dim": 32, "tie_word_embeddings": True},
    "Phi3": {},
}


def check_streams(source: Source, folder: Path) -> None:
    """Of the checkpoint's floats, and of the floats that the chosen codes stand for."""
    network = read_network(source.config)
    texts = random_texts(3, 20)
    with source.tensors() as checkpoint:
        codes, streams, _ = choose(checkpoint, network, folder, texts, head=None)
        final = LayerReader(checkpoint, network, 0).norm_weight(network.details.names.final_norm)
        for index, text in enumerate(texts):
            for states, read in ((streams.floats, checkpoint), (streams.chosen, coded(checkpoint, codes))):
                expected = reference_hidden(read, network, np.array(text))
                found = norm(states[index], final, network.norm_epsilon)
                np.testing.assert_allclose(found, expected, atol=2e-4 * np.abs(expected).max())
        groups = [group for layer in range(network.spec.layers) for group in groups_of(network, layer)]
        assert set(codes.layouts) == {name for group in groups for name in group.tensors}


@pytest.mark.parametrize("family", FAMILIES)
def test_streams_of_each_family_are_those_of_the_definition(
    family: str, make_oracle: MakeOracle, tmp_path: Path
) -> None:
    _, folder = make_oracle(family, **FAMILIES[family])
    check_streams(FolderSource(folder), tmp_path / "codes")


def test_streams_of_a_rotated_checkpoint(make_oracle: MakeOracle, tmp_path: Path) -> None:
    _, folder = make_oracle("Qwen3", **FAMILIES["Qwen3"])
    source = FolderSource(folder)
    check_streams(rotated(source, read_network(source.config), 0), tmp_path / "codes")


def test_streams_of_recurrent_layers(tmp_path: Path) -> None:
    make_hybrid(tmp_path / "model", gain=0.4)
    check_streams(FolderSource(tmp_path / "model"), tmp_path / "codes")


def test_errors_of_every_kind_become_smaller(tiny_checkpoint: Path, tmp_path: Path) -> None:
    source = FolderSource(tiny_checkpoint)
    with source.tensors() as checkpoint:
        _, _, chooser = choose(checkpoint, read_network(source.config), tmp_path / "codes", random_texts(8, 64))
    assert list(chooser.errors) == [QKV, OUTPUT, GATE_UP, DOWN, HEAD]
    for error in chooser.errors.values():
        assert 0 < error.chosen < 0.7 * error.nearest < 0.1 * error.outputs


def test_kept_matrices_get_no_codes_and_count_with_their_own_floats(tiny_checkpoint: Path, tmp_path: Path) -> None:
    source, every = FolderSource(tiny_checkpoint), set()
    network = read_network(source.config)
    for layer in range(network.spec.layers):
        every |= {name for group in groups_of(network, layer) for name in group.tensors}
    some = frozenset(name for name in every if "v_proj" in name or "down_proj" in name)
    with source.tensors() as checkpoint:
        codes, _, chooser = choose(checkpoint, network, tmp_path / "some", random_texts(4, 40), head=None, kept=some)
        _, streams, _ = choose(
            checkpoint, network, tmp_path / "all", random_texts(4, 40), head=None, kept=frozenset(every)
        )
    assert set(codes.layouts) == every - some
    assert list(chooser.errors) == [QKV, OUTPUT, GATE_UP]
    for chosen, floats in zip(streams.chosen, streams.floats, strict=True):
        np.testing.assert_array_equal(chosen, floats)


def test_wide_matrices_are_chosen_in_8_bits(tiny_checkpoint: Path, tmp_path: Path) -> None:
    source = FolderSource(tiny_checkpoint)
    network = read_network(source.config)
    wide = frozenset(groups_of(network, 0)[0].tensors)
    with source.tensors() as checkpoint:
        codes, _, chooser = choose(checkpoint, network, tmp_path / "codes", random_texts(8, 64), head=ROWS, wide=wide)
    eight = {name for name in codes.layouts if codes.read(name).bits == 8}
    assert eight == {*wide, head_tensor(network)}
    assert chooser.errors[HEAD].chosen < 0.5 * chooser.errors[HEAD].nearest < 0.01 * chooser.errors[HEAD].outputs


class Watched(SafetensorsCheckpoint):
    """Notes how many bytes of what it gave are still alive when it gives more."""

    most = 0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.alive: list[tuple[weakref.ref[np.ndarray], int]] = []

    def _taken(self, name: str, values: np.ndarray) -> np.ndarray:
        values = super()._taken(name, values.copy())
        self.alive = [(item, size) for item, size in self.alive if item() is not None]
        self.alive.append((weakref.ref(values), values.nbytes))
        self.most = max(self.most, sum(size for _, size in self.alive))
        return values


def test_a_group_of_matrices_is_in_memory_at_a_time(tiny_checkpoint: Path, tmp_path: Path) -> None:
    network = read_network(FolderSource(tiny_checkpoint).config)
    with Watched(tiny_checkpoint) as checkpoint:
        choose(checkpoint, network, tmp_path / "codes", random_texts(2, 32))
        sizes = [
            sum(checkpoint.stored_bytes(name) for name in group.tensors)
            for layer in range(network.spec.layers)
            for group in groups_of(network, layer)
        ]
        head = checkpoint.stored_bytes(head_tensor(network))
    assert checkpoint.most < 2 * (
        2 * max(*sizes, head)
    )  # stored in half the bytes of floats; one group beside the next
