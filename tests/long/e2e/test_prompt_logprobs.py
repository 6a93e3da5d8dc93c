"""Log-likelihoods as evaluation harnesses ask for them, against transformers on the embedded model's own weights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from openai import OpenAI

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.demo.location import demo_folder
from engine.text.tokenizer import Tokenizer
from tests.live import serving

CONTEXTS = [
    ("What is the capital of France?", " Paris."),
    ("The quick brown fox", " jumps over the lazy dog, and the dog does not mind at all."),
    ("One, two, three, " * 12, "four."),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    folder = tmp_path_factory.mktemp("exact") / "bundle"
    compile_bundle(CompileArguments(demo_folder(), folder, quant=Quant.FP32, parity_tokens=8), SilentProgress())
    with serving("--bundle", str(folder), "--model-name", "demo") as live:
        yield OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(Path(demo_folder(), "tokenizer.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def model() -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(demo_folder(), dtype=torch.float32)


@pytest.mark.parametrize(("context", "continuation"), CONTEXTS)
@pytest.mark.parametrize("max_tokens", [0, 1])
def test_every_token_of_a_prompt(
    client: OpenAI, tokenizer: Tokenizer, model: Any, context: str, continuation: str, max_tokens: int
) -> None:
    before, after = tokenizer.encode(context, False), tokenizer.encode(continuation, False)
    ids = [*before, *after]
    answer = client.completions.create(
        model="demo", prompt=ids, max_tokens=max_tokens, logprobs=1, echo=True, temperature=0
    )
    lists = answer.choices[0].logprobs
    assert lists is not None and lists.token_logprobs is not None and lists.tokens is not None
    assert len(lists.tokens) == len(lists.token_logprobs) == len(ids) + max_tokens
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double()
    expected = torch.log_softmax(logits, dim=1)
    assert lists.token_logprobs[0] is None
    assert lists.token_logprobs[1 : len(ids)] == pytest.approx(
        [float(expected[place, token]) for place, token in enumerate(ids[1:])], abs=1e-3
    )
    end = None if max_tokens == 0 else -1
    likelihood = sum(lists.token_logprobs[len(before) : end])
    assert likelihood == pytest.approx(
        sum(float(expected[len(before) - 1 + i, token]) for i, token in enumerate(after)), abs=1e-3 * len(after)
    )
    assert answer.choices[0].text.startswith(context + continuation)
    assert answer.usage is not None and answer.usage.prompt_tokens == len(ids)


def test_cached_tokens_are_told_although_a_stop_string_ended_the_request(client: OpenAI) -> None:
    prompt = "Numbers in order: one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen,"
    seen = []
    for _ in range(2):
        answer = client.completions.create(model="demo", prompt=prompt, max_tokens=40, stop=list("eaio"), seed=1)
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
        seen.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert seen[0] == 0 and seen[1] is not None and seen[1] >= 16
