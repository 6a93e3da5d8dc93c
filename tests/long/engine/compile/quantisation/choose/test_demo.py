"""The embedded model on text that it was not calibrated on: what chosen codes lose beside those of nearest."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from tokenizers import Tokenizer

from engine.compile.calibration.forward import embedded, reference_logits
from engine.compile.quantisation.choose.channels import ChannelScales
from engine.compile.quantisation.choose.choose import CodesFolder
from engine.compile.quantisation.choose.form import CodeForm, nearest
from engine.compile.quantisation.choose.matrices import groups_of
from engine.compile.quantisation.rounding.codes import Coding
from engine.compile.quantisation.transforms.transformed import TransformedCheckpoint
from engine.compile.sources.checkpoint import Checkpoint
from engine.compile.sources.source import FolderSource
from engine.demo.location import demo_folder
from engine.models.family import read_network
from engine.models.network import Network
from tests.engine.compile.quantisation.choose.texts import choose, coded
from tools.demo_model.corpus.conversation import render
from tools.demo_model.corpus.mixture import draw

FORMS = {"int4": CodeForm(32, Coding.SYMMETRIC), "w4a16": CodeForm(32, Coding.POSITIVE, has_multiples=True)}


def texts(seed: str, count: int, length: int) -> list[list[int]]:
    """Token sequences of the corpus, another for each seed."""
    tokenizer, random = Tokenizer.from_file(str(demo_folder() / "tokenizer.json")), Random(seed)
    tokens: list[int] = []
    while len(tokens) < count * length:
        tokens += tokenizer.encode("".join(span.text for span in render(draw(random)))).ids
    return [tokens[start : start + length] for start in range(0, count * length, length)]


def log_probabilities(checkpoint: Checkpoint, network: Network, held_out: list[list[int]]) -> np.ndarray:
    """[tokens of all texts, vocab]."""
    logits = np.concatenate([reference_logits(checkpoint, network, np.array(text)) for text in held_out])
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def divergences(expected: np.ndarray, found: np.ndarray) -> np.ndarray:
    """[tokens]: KL of each position."""
    return np.asarray((np.exp(expected) * (expected - found)).sum(axis=1))


def round_all(checkpoint: Checkpoint, network: Network, folder: Path, form: CodeForm) -> CodesFolder:
    """Every matrix of the layers rounded to nearest."""
    folder.mkdir()
    codes = CodesFolder(folder)
    groups = [group for layer in range(network.spec.layers) for group in groups_of(network, layer)]
    for name in (name for group in groups for name in group.tensors):
        codes.append(name, nearest(checkpoint.tensor(name, checkpoint.shape(name)), form))
    return codes


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_chosen_codes_diverge_by_less_than_half_of_nearest_ones(form: CodeForm, tmp_path: Path) -> None:
    """It is so in each of six texts by itself: no luck of a few positions."""
    source, other = FolderSource(demo_folder()), texts("other", 12, 256)
    network, held_out = read_network(source.config), texts("held out", 6, 128)
    with source.tensors() as checkpoint:
        expected = log_probabilities(checkpoint, network, held_out)
        rough = coded(checkpoint, round_all(checkpoint, network, tmp_path / "nearest", form))
        edits = ChannelScales(checkpoint, network, form, 32_768).edits(
            embedded(checkpoint, network, other[:4]), lambda _: None
        )
        scaled = TransformedCheckpoint(checkpoint, edits)
        codes, _, _ = choose(scaled, network, tmp_path / "chosen", other, form, None)
        before, after = (
            divergences(expected, log_probabilities(each, network, held_out)) for each in (rough, coded(scaled, codes))
        )
    assert after.mean() < 0.5 * before.mean()
    assert (after.reshape(6, -1).mean(axis=1) < before.reshape(6, -1).mean(axis=1)).all()
