"""The stored figures of llama.cpp are those of this text and these tokens; with FULL=1 they are taken again."""

from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from engine.compile.sources.source import open_source
from engine.models.family import read_network
from engine.text.tokenizer import Tokenizer
from tools.llama_cpp.__main__ import MODELS, measure
from tools.llama_cpp.fidelity import PUBLISHED_ALONE
from tools.llama_cpp.figures import Fidelity, LlamaFigures
from tools.real_models.fetch import RealModels

APART = 0.05  # kernels of another processor round elsewhere
LEAST_KL = 2e-5  # what storing the floats' predictions in 16 bits costs by itself


def test_they_were_taken_on_the_held_out_text(held_out: str, llama_cpp_figures: LlamaFigures) -> None:
    assert sha256(held_out.encode("utf-8")).hexdigest() == llama_cpp_figures.text_sha256
    assert llama_cpp_figures.windows * llama_cpp_figures.scored >= 8000


@pytest.mark.parametrize("name", (*MODELS, *PUBLISHED_ALONE))
def test_the_text_is_the_same_tokens_here(
    request: pytest.FixtureRequest, name: str, held_out: str, llama_cpp_figures: LlamaFigures, tmp_path: Path
) -> None:
    source = open_source(request.getfixturevalue(name.replace("-", "_")))
    text = source.write_text(tmp_path, read_network(source.config).spec.vocab)
    tokenizer = Tokenizer.load(tmp_path, text)
    tokens = tokenizer.with_bos(tokenizer.encode(held_out, allow_special=True))
    read = np.array(tokens[: llama_cpp_figures.windows * llama_cpp_figures.context], "<i4")
    assert sha256(read.tobytes()).hexdigest() == llama_cpp_figures.tokens[name]


@pytest.mark.full
def test_llama_cpp_still_prints_them(real_models: RealModels, llama_cpp_figures: LlamaFigures) -> None:
    found = measure(real_models, print)
    assert found.commands == llama_cpp_figures.commands and found.tokens == llama_cpp_figures.tokens
    places = [(each.model, each.kind, each.floats) for each in llama_cpp_figures.fidelity]
    assert [(each.model, each.kind, each.floats) for each in found.fidelity] == places
    pairs = zip(found.fidelity, llama_cpp_figures.fidelity, strict=True)
    assert [(now, stored) for now, stored in pairs if not is_same(now, stored)] == []


def is_same(now: Fidelity, stored: Fidelity) -> bool:
    """Whether both say the same of one file."""
    kl = abs(now.kl.mean - stored.kl.mean) <= max(APART * stored.kl.mean, LEAST_KL)
    top = abs(now.same_top.mean - stored.same_top.mean) <= 2 * stored.same_top.error
    return kl and top and abs(now.ratio.mean - stored.ratio.mean) <= 2 * stored.ratio.error
