"""What a client is served of published files, against their own floats, beside llama.cpp on the same tokens."""

import json
from collections.abc import Callable
from dataclasses import astuple
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from rich.console import Console

from engine.compile.sources.source import open_source
from engine.evaluation.evaluate import Quality
from engine.models.family import read_network
from engine.models.network import Network
from tools.fidelity.__main__ import BAR, MADE, at_context, measured
from tools.fidelity.served import read_as_served
from tools.llama_cpp.__main__ import MODELS, TREE
from tools.llama_cpp.fidelity import CONTEXT, PUBLISHED, PUBLISHED_ALONE
from tools.llama_cpp.figures import LlamaFigures
from tools.random_checkpoint import write_shards
from tools.real_models.fetch import RealModels
from tools.real_models.held_out import held_out_text

WINDOWS = 2  # of 255 scored tokens: what is left of the bars is more than a window's chance


@pytest.fixture(scope="module")
def served(real_models: RealModels) -> Callable[[str], list[Quality]]:
    """What is lost of a published file and, of most, of a folder of its floats, which are read once for both."""

    @cache
    def of(name: str) -> list[Quality]:
        with TemporaryDirectory(prefix="hexserve-") as made:
            files = [real_models.fetch(name)]
            if name in MODELS:
                files.append(as_folder(files[0], Path(made) / name))
            text = held_out_text(real_models.fetch(TREE))
            return [each.quality for each in read_as_served(files, text, CONTEXT, WINDOWS, Path(made))]

    return of


@pytest.mark.parametrize("name", (*MODELS, *PUBLISHED_ALONE))
def test_published_files_lose_no_more_than_the_bar(
    name: str, served: Callable[[str], list[Quality]], llama_cpp_figures: LlamaFigures
) -> None:
    """On 1,024 tokens, of which the second half of each window is scored; the likeliest is as often the floats'."""
    theirs, ours = llama_cpp_figures.of(name, PUBLISHED).beginning, served(name)[0]
    assert theirs is not None and theirs.windows == WINDOWS
    assert ours.tokens == WINDOWS * llama_cpp_figures.scored and ours.kl is not None
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
    lost = {each.kind: each.ratio for each in measured(real_models, [name], MADE, Console(quiet=True))}
    assert {kind: ratio for kind, ratio in lost.items() if ratio > BAR} == {}


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_is_served_no_farther_from_its_floats_than_q4_k_m(
    name: str, served: Callable[[str], list[Quality]], llama_cpp_figures: LlamaFigures
) -> None:
    """By default, of the floats of the published file; llama.cpp makes Q4_K_M of the same."""
    found = served(name)[1]
    assert found.tokens == WINDOWS * llama_cpp_figures.scored and found.kl is not None
    assert found.kl.high <= llama_cpp_figures.of(name, "Q4_K_M", PUBLISHED).kl.mean


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
