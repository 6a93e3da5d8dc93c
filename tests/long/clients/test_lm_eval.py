"""lm-eval's numbers for the embedded model: against transformers on its weights, metrics against their definitions."""

import json
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
import transformers

from engine.demo.location import demo_folder
from tests.clients.environments import EnvironmentFailed, run_client
from tests.clients.servers import Servers

CLOSE = 1e-3  # per token
SCORED = ["hexserve_choices", "hexserve_words"]


@pytest.fixture(scope="module")
def found(servers: Servers) -> Any:
    """Everything `lm_eval/evaluate.py` found."""
    try:
        done = run_client("lm_eval", servers.variables(("demo",)), "evaluate.py")
    except EnvironmentFailed as failed:
        pytest.fail(str(failed), pytrace=False)
    assert done.code == 0, done.errors
    return json.loads(done.last_line())


class Reference:
    """The embedded model as transformers runs it."""

    def __init__(self) -> None:
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(demo_folder())
        self._model = transformers.AutoModelForCausalLM.from_pretrained(demo_folder(), dtype=torch.float32)

    def ids(self, text: str) -> list[int]:
        """Token ids of a text, nothing added."""
        return list(self._tokenizer(text, add_special_tokens=False).input_ids)

    @property
    def end(self) -> int:
        """The token that lm-eval puts before a text that has no context."""
        return int(self._tokenizer.eos_token_id)

    def score(self, context: Sequence[int], continuation: Sequence[int]) -> tuple[float, bool]:
        """Log-probability of a continuation, and whether greedy decoding would have written it."""
        with torch.no_grad():
            logits = self._model(torch.tensor([[*context, *continuation]])).logits[0].double()
        rows = torch.log_softmax(logits[len(context) - 1 : -1], dim=1)
        picked = rows[range(len(continuation)), list(continuation)]
        return float(picked.sum()), rows.argmax(dim=1).tolist() == list(continuation)

    def greedy(self, text: str, most: int) -> str:
        """What greedy decoding writes behind a text."""
        asked = torch.tensor([self.ids(text)])
        made = self._model.generate(
            asked, attention_mask=torch.ones_like(asked), max_new_tokens=most, do_sample=False, pad_token_id=0
        )
        return str(self._tokenizer.decode(made[0, asked.shape[1] :], skip_special_tokens=True))


@cache
def reference() -> Reference:
    return Reference()


def pair(context: str, continuation: str) -> tuple[list[int], list[int]]:
    """The rule of lm-eval: white space that ends a context belongs to what follows, the two are cut from one text."""
    kept = context.rstrip()
    whole = reference().ids(context + continuation)
    length = len(reference().ids(kept))
    return whole[:length], whole[length:]


def likelihoods(found: Any, run: str, task: str) -> list[list[float]]:
    """Log-likelihoods of each document."""
    return [[value for value, _ in sample["found"]] for sample in found[run][task]["samples"]]


@pytest.mark.parametrize("run", ["completions", "batched", "texts"])
@pytest.mark.parametrize("task", SCORED)
def test_loglikelihoods_are_those_of_transformers(found: Any, run: str, task: str) -> None:
    greedy = []
    for sample in found[run][task]["samples"]:
        for (context, continuation), (value, is_greedy) in zip(sample["asked"], sample["found"], strict=True):
            first, then = pair(context, continuation)
            expected, would_write = reference().score(first, then)
            assert value == pytest.approx(expected, abs=CLOSE * len(then)), (context, continuation)
            assert is_greedy == would_write
            greedy.append(is_greedy)
    assert task != "hexserve_words" or (True in greedy and False in greedy)


@pytest.mark.parametrize("run", ["completions", "batched"])
def test_rolling_loglikelihoods_are_those_of_transformers(found: Any, run: str) -> None:
    for sample in found[run]["hexserve_story"]["samples"]:
        [[page]] = sample["asked"]
        ids = reference().ids(page)
        expected, _ = reference().score([reference().end], ids)
        assert sample["found"] == [pytest.approx(expected, abs=CLOSE * len(ids))]


def test_texts_longer_than_the_window(found: Any) -> None:
    """Windows of what fits beside one token of context and the token that every request generates."""
    fits = 16 - 2
    for sample in found["windows"]["hexserve_story"]["samples"]:
        [[page]] = sample["asked"]
        ids = reference().ids(page)
        assert len(ids) > 2 * fits
        expected = reference().score([reference().end], ids[:fits])[0]
        for start in range(fits, len(ids), fits):
            end = min(start + fits, len(ids))
            expected += reference().score(ids[end - fits - 1 : start], ids[start:end])[0]
        assert sample["found"] == [pytest.approx(expected, abs=CLOSE * len(ids))]


def test_multiple_choice_metrics(found: Any) -> None:
    task = found["completions"]["hexserve_choices"]
    labels = [0, 1, 0, 0, 1]
    scores, ends = [], []
    for sample in task["samples"]:
        pairs = [pair(*asked) for asked in sample["asked"]]
        scores.append([reference().score(*one)[0] for one in pairs])
        ends.append([len(continuation) for _, continuation in sample["asked"]])
    best = [row.index(max(row)) for row in scores]
    ratios = [[score / length for score, length in zip(*row, strict=True)] for row in zip(scores, ends, strict=True)]
    normed = [row.index(max(row)) for row in ratios]
    hits = [sum(a == b for a, b in zip(labels, chosen, strict=True)) / len(labels) for chosen in (best, normed)]
    assert [task["results"]["acc,none"], task["results"]["acc_norm,none"]] == pytest.approx(hits)


def test_perplexities(found: Any) -> None:
    words = found["completions"]["hexserve_words"]
    logs = [value for [value] in likelihoods(found, "completions", "hexserve_words")]
    assert words["results"]["perplexity,none"] == pytest.approx(math.exp(-sum(logs) / len(logs)))
    story = found["completions"]["hexserve_story"]
    pages = [sample["asked"][0][0] for sample in story["samples"]]
    total = sum(reference().score([reference().end], reference().ids(page))[0] for page in pages)
    octets = sum(len(page.encode()) for page in pages)
    assert story["results"]["byte_perplexity,none"] == pytest.approx(math.exp(-total / octets), rel=1e-3)
    assert story["results"]["bits_per_byte,none"] == pytest.approx(-total / octets / math.log(2), rel=1e-3)
    assert story["results"]["word_perplexity,none"] == pytest.approx(
        math.exp(-total / sum(len(page.split()) for page in pages)), rel=1e-2
    )


def test_greedy_generation_is_that_of_transformers(found: Any) -> None:
    for sample in found["completions"]["hexserve_continued"]["samples"]:
        [[prompt, settings]] = sample["asked"]
        expected = reference().greedy(prompt, settings["max_gen_toks"])
        for stop in settings["until"]:
            expected = expected.split(stop)[0]
        assert sample["found"] == [expected]


def test_chat_completions(found: Any) -> None:
    """The scripted model echoes, so every answer is the one that is wanted."""
    assert found["chat"]["hexserve_echoed"]["results"]["exact_match,none"] == 1.0


def test_the_remote_tokenizer_brings_its_key(found: Any) -> None:
    samples = found["keyed"]["hexserve_choices"]["samples"]
    assert len(samples) == 5 and all(value < 0 for sample in samples for value, _ in sample["found"])
