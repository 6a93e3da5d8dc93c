"""A text read by several models: transformers' perplexity, one window at a time, and what does not fit together."""

import math
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import transformers

from engine.compile.arguments import CompileArguments, Layout, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.demo.location import demo_folder
from engine.errors import BundleError, EngineFailure
from engine.evaluation.evaluate import DEFAULT_CONTEXT, context_of, cut, evaluate, quality, windows_of
from engine.evaluation.models import EvaluatedModel, TokenVocabulary, evaluated_text, open_bundle, open_reference

TEXT = (
    "A lighthouse keeper wrote the weather into a book every evening: wind from the west, 4 degrees, rain before "
    "midnight. One day a boat brought 12 crates and a letter. Count them twice, it said, and answer by the next tide. "
) * 3


class SplitText:
    """Words as tokens: the number that a word is."""

    def __init__(self, size: int = 8, step: int = 0) -> None:
        self.size, self._step, self.bos = size, step, ()

    def tokens(self, text: str, most: int) -> tuple[int, ...]:
        found = tuple(int(word) + self._step for word in text.split())
        return found[:most] if most else found


def model(name: str = "m", longest: int = 100, size: int = 8, step: int = 0, of: Any = None) -> EvaluatedModel:
    """Logits are zeros unless `of` says otherwise."""

    def logits(tokens: Sequence[int], *, first: int = 0) -> np.ndarray:
        return cast(np.ndarray, of(tokens[first:])) if of else np.zeros((len(tokens) - first, size), np.float32)

    words = cast(TokenVocabulary, SplitText(size, step))
    return EvaluatedModel(name, "fp32", "CPU", 1, longest, longest, words, logits)


@pytest.mark.parametrize(("context", "stride"), [(64, 64), (64, 24)])
def test_the_perplexity_of_the_demo_is_that_of_transformers(tmp_path: Path, context: int, stride: int) -> None:
    """Bundle and float definition, over windows that transformers reads as its own pages say."""
    made = CompileArguments(demo_folder(), tmp_path / "b", quant=Quant.FP32, layout=Layout.SEGMENTS, parity_tokens=8)
    compile_bundle(made, SilentProgress())
    with ExitStack() as stack:
        bundle = open_bundle("b", tmp_path / "b", None, stack)
        reference = open_reference("demo", demo_folder(), bundle.made_for, None, stack)
        windows = windows_of([bundle, reference], TEXT, 0, context, stride)
        read: list[int] = []
        (found,), of_reference = evaluate([bundle], reference, windows, read.append)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(demo_folder(), dtype=torch.float32).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(demo_folder())(TEXT, add_special_tokens=False)["input_ids"]
    losses, scored, end = 0.0, 0, 0
    for start in range(0, len(tokens), stride):
        stop = min(start + context, len(tokens))
        labels = torch.tensor([tokens[start:stop]])
        labels[:, : max(end - start, 0)] = -100
        count = int((labels[:, 1:] != -100).sum())
        with torch.no_grad():
            losses += count * float(oracle(torch.tensor([tokens[start:stop]]), labels=labels).loss) if count else 0.0
        scored, end = scored + count, stop
        if stop == len(tokens):
            break
    expected = math.exp(losses / scored)
    assert len(windows) > 2
    for scores in (found, of_reference):
        assert quality(scores, 0).tokens == scored
        assert quality(scores, 0).perplexity.value == pytest.approx(expected, rel=1e-4)
    assert sum(read) == 2 * sum(len(window.inputs) for window in windows)
    against = quality(found, 0)
    assert against.kl_p99 is not None
    assert against.top1 is not None
    assert against.top1.value == 1
    assert against.kl_p99.value < 1e-6


def test_rounding_is_seen(tmp_path: Path) -> None:
    names = {"int8": Quant.INT8, "int4": Quant.INT4}
    for name, quant in names.items():
        made = CompileArguments(demo_folder(), tmp_path / name, quant=quant, parity_tokens=8)
        compile_bundle(made, SilentProgress())
    with ExitStack() as stack:
        models = [open_bundle(name, tmp_path / name, None, stack) for name in names]
        reference = open_reference("demo", demo_folder(), models[0].made_for, None, stack)
        windows = windows_of([*models, reference], TEXT, 100, 64, 0)
        scores, _ = evaluate(models, reference, windows, lambda count: None)
    eight, four = (quality(each, 0) for each in scores)
    assert eight.kl is not None
    assert four.kl is not None
    assert 0 < eight.kl.high < four.kl.low
    assert models[0].size > models[1].size


def test_logits_of_one_window_and_the_references_are_there_at_a_time() -> None:
    made: list[weakref.ref[np.ndarray]] = []
    most = 0

    def logits(tokens: Sequence[int]) -> np.ndarray:
        nonlocal most
        found = np.zeros((len(tokens), 8), np.float32)
        made.append(weakref.ref(found))
        most = max(most, sum(each() is not None for each in made))
        return found

    models = [model(of=logits), model(of=logits)]
    windows = cut(tuple(range(8)) * 20, 10, 10)
    evaluate(models, model(of=logits), windows, lambda count: None)
    assert len(windows) == 16
    assert len(made) == 48
    assert most == 2  # the reference's and a model's


def test_logits_that_are_no_numbers_are_refused() -> None:
    def broken(tokens: Sequence[int]) -> np.ndarray:
        return np.full((len(tokens), 8), np.nan, np.float32)

    with pytest.raises(EngineFailure, match=r"^worse gave logits that are not finite$"):
        evaluate([model(), model("worse", of=broken)], None, cut((1, 2, 3), 3, 3), lambda count: None)


def test_the_context_is_what_all_models_hold() -> None:
    assert context_of([model(longest=2000), model(longest=3000)], 0) == DEFAULT_CONTEXT
    assert context_of([model(longest=2000), model(longest=70)], 0) == 70
    assert context_of([model(longest=2000), model(longest=70)], 70) == 70
    with pytest.raises(BundleError, match=r"^--context 71: b holds at most 70 tokens of a text$"):
        context_of([model("a", longest=2000), model("b", longest=70)], 71)


def test_models_must_read_the_same_tokens() -> None:
    with pytest.raises(BundleError, match=r"^b has another vocabulary than a: 9 tokens, not 8$"):
        windows_of([model("a"), model("b", size=9)], "1 2 3", 0, 4, 0)
    with pytest.raises(BundleError, match=r"^b has another vocabulary than a: the text is other tokens to it$"):
        windows_of([model("a"), model("b", step=1)], "1 2 3", 0, 4, 0)


def test_a_text_may_be_too_short_or_cut() -> None:
    with pytest.raises(BundleError, match=r"^the text has 1 tokens: too few to predict one from those before it$"):
        windows_of([model()], "1", 0, 4, 0)
    assert [window.tokens for window in windows_of([model()], "1 2 3 4 5 6", 5, 3, 0)] == [(1, 2, 3), (4, 5)]


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes("caf\xe9".encode("latin-1"))
    with pytest.raises(BundleError, match=r"latin cannot be used: it is not UTF-8 \(byte 3\)$"):
        evaluated_text(tmp_path / "latin")
    with pytest.raises(BundleError, match=r"none cannot be read: No such file or directory$"):
        evaluated_text(tmp_path / "none")
    with pytest.raises(BundleError, match=r"cannot be used: "):
        evaluated_text(tmp_path)


def test_the_first_tokens_of_a_text_are_those_of_the_whole(tiny_checkpoint: Path, free_bundle: Path) -> None:
    with ExitStack() as stack:
        words = open_bundle("b", free_bundle, None, stack).vocabulary
    text = "word and wörd, " * 300
    whole = words.tokens(text, 0)
    for most in (1, 7, len(whole) - 1, len(whole), len(whole) + 5):
        assert words.tokens(text, most) == whole[:most]
