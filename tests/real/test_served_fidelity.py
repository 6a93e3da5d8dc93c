"""What a client is served of published files, against their own floats, beside llama.cpp on the same tokens."""

import json
from collections.abc import Callable, Iterator
from dataclasses import astuple
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import pytest
from rich.console import Console

from engine.compile.sources.source import open_source
from engine.models.family import read_network
from engine.models.network import Network
from tests.real.conftest import FIGURES
from tools.fidelity.__main__ import BAR, MADE, at_context, measured
from tools.fidelity.served import read_as_served
from tools.llama_cpp.__main__ import MODELS, TREE
from tools.llama_cpp.fidelity import PUBLISHED, PUBLISHED_ALONE
from tools.llama_cpp.figures import LlamaFigures
from tools.random_checkpoint import write_shards
from tools.real_models.fetch import RealModels
from tools.real_models.held_out import held_out_text


@pytest.fixture(scope="module")
def folders() -> Iterator[Callable[[str], Path]]:
    """A folder for each model's bundles: that of its floats serves all tests of the model."""
    with TemporaryDirectory(prefix="hexserve-") as made:

        def folder_of(name: str) -> Path:
            (folder := Path(made) / name).mkdir(exist_ok=True)
            return folder

        yield folder_of


@pytest.mark.parametrize("name", (*MODELS, *PUBLISHED_ALONE))
def test_published_files_lose_no_more_than_the_bar(
    name: str, real_models: RealModels, folders: Callable[[str], Path], tmp_path: Path
) -> None:
    """On 2,048 tokens, of which the second half of each window is scored; the likeliest is as often the floats'."""
    figures = msgspec.json.decode(FIGURES.read_bytes(), type=LlamaFigures)
    theirs = figures.of(name, PUBLISHED).beginning
    assert theirs is not None
    file, text = real_models.fetch(name), held_out_text(real_models.fetch(TREE))
    folder = folders(name) if name in MODELS else tmp_path
    ours = read_as_served(file, text, figures.context, theirs.windows, folder).quality
    assert ours.tokens == 4 * 255 and ours.kl is not None
    assert ours.kl.value <= BAR * theirs.kl.mean
    assert ours.top1 is not None and ours.top1.value >= theirs.same_top.mean - 2 * theirs.same_top.error


@pytest.mark.full
@pytest.mark.parametrize("context", [2048, 8192])
def test_behind_gemmas_windows_no_more_is_lost(context: int, real_models: RealModels) -> None:
    found = at_context(real_models, "gemma", context, Console(quiet=True))
    assert found.ratio <= BAR
    assert found.ours.quality.top1 and found.ours.quality.top1.value >= found.same_top.mean - 2 * found.same_top.error


@pytest.mark.full
@pytest.mark.parametrize("name", (*MODELS, *PUBLISHED_ALONE))
def test_the_bar_holds_on_all_windows(name: str, real_models: RealModels) -> None:
    (found,) = measured(real_models, [name], (PUBLISHED,), Console(quiet=True))
    assert found.ours.quality.tokens >= 8000
    assert found.ratio <= BAR


@pytest.mark.full
@pytest.mark.parametrize("name", MODELS)
def test_files_that_llama_quantize_makes_lose_no_more(name: str, real_models: RealModels) -> None:
    lost = {each.theirs.kind: each.ratio for each in measured(real_models, [name], MADE, Console(quiet=True))}
    assert {kind: ratio for kind, ratio in lost.items() if ratio > BAR} == {}


WINDOWS = 4  # of a folder: what is left of the bar is far more than a window's chance


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_is_served_no_farther_from_its_floats_than_q4_k_m(
    name: str, real_models: RealModels, folders: Callable[[str], Path], tmp_path: Path
) -> None:
    """By default, of the floats of the published file; llama.cpp makes Q4_K_M of the same."""
    figures = msgspec.json.decode(FIGURES.read_bytes(), type=LlamaFigures)
    folder = as_folder(real_models.fetch(name), tmp_path / name)
    text = held_out_text(real_models.fetch(TREE))
    found = read_as_served(folder, text, figures.context, WINDOWS, folders(name)).quality
    assert found.tokens == WINDOWS * figures.scored and found.kl is not None
    assert found.kl.high <= figures.of(name, "Q4_K_M", "published").kl.mean


def tensor_names(network: Network) -> list[str]:
    """All that such a folder may have, in order."""
    modules: list[str] = []
    for told in astuple(network.details.names):
        modules += [told] if isinstance(told, str) else told
    layers = range(network.spec.layers)
    named = dict.fromkeys(module.format(layer=layer) for module in modules for layer in layers)
    return [f"{name}.{kind}" for name in named for kind in ("weight", "bias")]


def as_folder(file: Path, folder: Path) -> Path:
    """A file's floats as a Hugging Face folder."""
    folder.mkdir()
    source = open_source(file)
    with source.tensors() as tensors:
        names = [name for name in tensor_names(read_network(source.config)) if name in tensors]
        write_shards(folder, ((name, tensors.tensor(name, tensors.shape(name))) for name in names))
        vocab = source.config["vocab_size"]
        assert isinstance(vocab, int)
        text = source.write_text(folder, vocab)
    settings = {"bos_token": text.bos_token, "eos_token": text.eos_token, "add_bos_token": text.add_bos}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps(source.config | {"torch_dtype": "float32"}))
    return folder
