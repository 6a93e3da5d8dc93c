"""Published models for every test here, all marked `real`: fetched once, and never skipped for want of them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tools.llama_cpp.figures import LlamaFigures
from tools.real_models.fetch import FetchFailed, RealModels, default_folder
from tools.real_models.held_out import held_out_text

HERE = Path(__file__).parent
FIGURES = HERE / "llama_cpp_figures.json"


@pytest.fixture(scope="session")
def real_models() -> RealModels:
    """The cache folder, from which a test fetches what it names."""
    return RealModels(default_folder())


@pytest.fixture(scope="session")
def bundle_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of bundles that the workers of this run share: what two files serve is compiled once."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "bundles"


def fetched(models: RealModels, name: str) -> Path:
    """A model's place; the test fails with one sentence where it cannot be had."""
    try:
        return models.fetch(name)
    except FetchFailed as error:
        pytest.fail(f"real models cannot be tested: {error}", pytrace=False)


@pytest.fixture(scope="session")
def llama_cpp_models(real_models: RealModels) -> Path:
    """llama.cpp's folder of vocabularies with expected ids and of chat templates."""
    return fetched(real_models, "llama-cpp") / "models"


@pytest.fixture(scope="session")
def convert(real_models: RealModels) -> Iterator[Callable[..., None]]:
    """llama.cpp's converter with its arguments, loaded once."""
    command = [sys.executable, str(HERE / "converting.py"), str(fetched(real_models, "llama-cpp"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as converter:
        asked, told = converter.stdin, converter.stdout
        assert asked is not None and told is not None

        def run(*arguments: str) -> None:
            print(json.dumps(arguments), file=asked, flush=True)
            code, said = json.loads(told.readline())
            assert code == 0, said

        yield run


@pytest.fixture(scope="session")
def smollm2(real_models: RealModels) -> Path:
    """SmolLM2-135M-Instruct, a GGUF file with Q4_1."""
    return fetched(real_models, "smollm2")


@pytest.fixture(scope="session")
def qwen_coder(real_models: RealModels) -> Path:
    """Qwen2.5-Coder-0.5B-Instruct, a GGUF file with Q4_K_M."""
    return fetched(real_models, "qwen-coder")


@pytest.fixture(scope="session")
def gemma(real_models: RealModels) -> Path:
    """Gemma 3 270M, a GGUF file with Q4_K_M and windows of 512 tokens."""
    return fetched(real_models, "gemma")


@pytest.fixture(scope="session")
def minilm(real_models: RealModels) -> Path:
    """all-MiniLM-L6-v2, a sentence-transformers folder."""
    return fetched(real_models, "minilm")


@pytest.fixture(scope="session")
def held_out(real_models: RealModels) -> str:
    """The text on which fidelity is measured, and nothing is tuned."""
    return held_out_text(fetched(real_models, "llama-cpp"))


@pytest.fixture(scope="session")
def llama_cpp_figures() -> LlamaFigures:
    """What llama.cpp's own programs lose on that text; `make test-real FULL=1` takes them again."""
    return msgspec.json.decode(FIGURES.read_bytes(), type=LlamaFigures)
