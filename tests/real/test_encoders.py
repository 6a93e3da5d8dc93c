"""`hexserve serve` of all-MiniLM-L6-v2 as it comes: vectors over HTTP beside transformers in double precision.

The definition is that of the model's own files: the mean of all rows that are no padding, of length 1, texts cut at
`max_seq_length` with the tokens around them kept.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModel, AutoTokenizer

from tests.live import LiveServer, serving

Vectors = NDArray[np.float64]
LEAST = 0.9999
LONG = "The river that runs through the old town was higher than in any spring since records began. " * 40
TEXTS = [
    "Hello",
    "The quick brown fox jumps over the lazy dog.",
    "How do I reset my password if I no longer have access to my e-mail account?",
    "Die Geschwindigkeit des Lichts im Vakuum beträgt 299792458 m/s.",
    "naïve café, Größe, e\u0301 decomposed, ﬁ ligature",
    "日本語のテキスト、中文文本。",
    "한국어 텍스트 ไทย हिन्दी العربية",
    "🙂👩‍👩‍👧 emoji \u200b zero width",
    "def f(x): return {'a': [1, 2.50, 0xFF]}  # ok_then\n\tpass",
    "SELECT name, COUNT(*) FROM users WHERE age >= 18 GROUP BY name;",
    "E = mc²; ∫ x dx = ½x² + C",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
    "x" * 120,
    "1 2 3 4 5 6 7 8 9 10",
    "!!! ??? ... --- ***",
    "[CLS] and [SEP] are tokens here too, [MASK] as well",
    "A cat sat on a mat.",
    "A dog lay on a rug.",
    "Quarterly revenue rose by 12 % while costs fell.",
    "  two   spaces,\ttabs and\n\nlines  ",
    "",
    " ",
    "\u00a0",
    ".",
    "The mitochondria are the power house of the cell. " * 8,
    LONG,
]


@pytest.fixture(scope="module")
def server(minilm: Path, bundle_cache: Path) -> Iterator[LiveServer]:
    """No option says how weights are stored."""
    with serving(str(minilm), cache=bundle_cache) as running:
        yield running


@pytest.fixture(scope="module")
def expected(minilm: Path) -> Vectors:
    tokenizer, model = AutoTokenizer.from_pretrained(minilm), AutoModel.from_pretrained(minilm).double().eval()
    longest = json.loads((minilm / "sentence_bert_config.json").read_text())["max_seq_length"]
    found = []
    for text in TEXTS:
        ids = tokenizer(text, truncation=True, max_length=longest).input_ids
        with torch.no_grad():
            vector = model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy().mean(axis=0)
        found.append(vector / np.linalg.norm(vector))
    return np.array(found)


def embed(server: LiveServer, **body: object) -> Vectors:
    asked = {"model": "all-MiniLM-L6-v2", "truncate_prompt_tokens": -1} | body
    answer = httpx.post(f"{server.url}/v1/embeddings", json=asked, timeout=120)
    assert answer.status_code == 200, answer.text
    return np.array([item["embedding"] for item in answer.json()["data"]], np.float64)


def test_a_batch_has_the_vectors_of_transformers(server: LiveServer, expected: Vectors) -> None:
    cosines = (embed(server, input=TEXTS) * expected).sum(axis=1)
    assert cosines.min() >= LEAST, dict(zip(TEXTS, cosines, strict=True))


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_alone_has_the_vector_of_transformers(text: str, server: LiveServer, expected: Vectors) -> None:
    found = embed(server, input=text)
    assert found.shape == (1, 384)
    assert np.linalg.norm(found[0]) == pytest.approx(1, abs=1e-5)
    assert found[0] @ expected[TEXTS.index(text)] >= LEAST


def test_a_longer_text_is_refused_unless_it_may_be_cut(server: LiveServer) -> None:
    asked = {"model": "all-MiniLM-L6-v2", "input": ["short", LONG]}
    answer = httpx.post(f"{server.url}/v1/embeddings", json=asked, timeout=120)
    assert answer.status_code == 400
    assert "256" in answer.json()["error"]["message"]
