"""`hexserve serve` of cross-encoders: the scores are transformers' own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from tokenizers import Tokenizer

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from tests.live import serving
from tests.tiny_encoder import write_encoder

QUERY = "the cat sat on"
DOCUMENTS = ["the dog", "a cat sat. [SEP] on", "x", "searching documents: 1, 2, 3", "dog " * 30]
FAMILIES: dict[str, dict[str, Any]] = {"Bert": {}, "XLMRoberta": {"type_vocab_size": 1, "pad_token_id": 0}}
Served = tuple[str, Path, Any]


@pytest.fixture(scope="module", params=FAMILIES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Address, folder of the checkpoint, and the model of transformers."""
    folder = tmp_path_factory.mktemp("pairs")
    model = write_encoder(
        folder / "judge", request.param, "ForSequenceClassification", num_labels=1, **FAMILIES[request.param]
    )
    arguments = CompileArguments(folder / "judge", folder / "bundle", quant=Quant.FP32, rows=(32, 96))
    compile_bundle(arguments, SilentProgress())
    with serving("--bundle", str(folder / "bundle"), cache=folder / "cache") as running:
        yield running.url, folder / "judge", model


def expected(served: Served, longest: int = 0) -> list[float]:
    """The sigmoid of each pair's logit, computed alone. What a text says of special tokens is plain text."""
    _, folder, model = served
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    if longest:
        tokenizer.enable_truncation(longest, strategy="longest_first")
    tokenizer.encode_special_tokens = True
    found = []
    for document in DOCUMENTS:
        pair = tokenizer.encode(QUERY, document)
        types = torch.tensor([pair.type_ids])
        if model.config.type_vocab_size == 1:
            types *= 0
        with torch.no_grad():
            logits = model.double()(input_ids=torch.tensor([pair.ids]), token_type_ids=types).logits
        found.append(torch.sigmoid(logits[0, 0]).item())
    return found


def rerank(served: Served, **body: Any) -> httpx.Response:
    whole = {"model": "judge", "query": QUERY, "documents": DOCUMENTS} | body
    return httpx.post(f"{served[0]}/v1/rerank", json=whole, timeout=60)


@pytest.mark.parametrize("longest", [0, 11, 12])
def test_scores_are_those_of_transformers(served: Served, longest: int) -> None:
    """Whole, and cut as the library cuts pairs, to an even and an odd number of tokens."""
    answer = rerank(served, **({"truncate_prompt_tokens": longest} if longest else {}))
    assert answer.status_code == 200, answer.text
    found = {item["index"]: item["relevance_score"] for item in answer.json()["results"]}
    assert [found[index] for index in range(len(DOCUMENTS))] == pytest.approx(expected(served, longest), abs=2e-5)


def test_what_a_cross_encoder_does_not_do_is_refused_by_name(served: Served) -> None:
    refused = rerank(served, instruction="find the cat")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "instruction"
    too_long = rerank(served, documents=["dog " * 100])
    assert too_long.json()["error"]["code"] == "context_length_exceeded"
    chat = {"model": "judge", "messages": [{"role": "user", "content": "hello"}]}
    answer = httpx.post(f"{served[0]}/v1/chat/completions", json=chat)
    assert answer.status_code == 400
    assert "/v1/rerank" in answer.json()["error"]["message"]
    answer = httpx.post(f"{served[0]}/v1/embeddings", json={"model": "judge", "input": "hello"})
    assert answer.status_code == 400
    assert "'rerank'" in answer.json()["error"]["message"]
