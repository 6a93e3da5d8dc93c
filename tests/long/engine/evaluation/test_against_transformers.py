"""The embedded model's figures against transformers and torch, on text with special tokens."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from engine.compile.arguments import CompileArguments, Quant
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.demo.location import demo_folder
from engine.evaluation.evaluate import TAIL, evaluate, quality, windows_of
from engine.evaluation.models import open_bundle, open_reference

TEXT = (
    "<|im_start|>system\nYou are brief.<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
    "<|im_start|>assistant\nThe capital of France is Paris.<|im_end|>\n<|endoftext|>Once upon a time there was a "
    'little cat. It sat on the wall; "Zoë", it said, "3 + 4 = 7!"\n'
) * 3
CONTEXT, STRIDE = 48, 32


def test_perplexity_divergence_and_agreement(tmp_path: Path) -> None:
    compile_bundle(CompileArguments(demo_folder(), tmp_path / "b", quant=Quant.INT4), SilentProgress())
    tokenizer = transformers.AutoTokenizer.from_pretrained(demo_folder())
    network = transformers.AutoModelForCausalLM.from_pretrained(demo_folder(), dtype=torch.float32)
    with ExitStack() as stack:
        model = open_bundle("b", tmp_path / "b", None, stack)
        reference = open_reference("demo", demo_folder(), model.made_for, None, stack)
        windows = windows_of([model, reference], TEXT, 0, CONTEXT, STRIDE)
        scores, of_reference = evaluate([model], reference, windows, lambda tokens: None)
        ids = tokenizer(TEXT, add_special_tokens=False).input_ids
        assert [token for window in windows for token in window.targets] == ids[1:]  # each scored once, in order
        losses, own_losses, divergences, agreements = [], [], [], []
        for window in windows:
            with torch.no_grad():
                expected = network(torch.tensor([window.inputs])).logits[0, window.first - 1 :].double()
            found = torch.tensor(model.logits(window.inputs, first=window.first - 1)).double()
            targets = torch.tensor(window.targets)
            losses.append(torch.nn.functional.cross_entropy(found, targets, reduction="none"))
            own_losses.append(torch.nn.functional.cross_entropy(expected, targets, reduction="none"))
            p, q = (each.log_softmax(1) for each in (expected, found))
            divergences.append(torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(1))
            agreements.append(expected.argmax(1) == found.argmax(1))
    measured, of_float = quality(scores[0], 0), quality(of_reference, 0)
    assert measured.perplexity_loss is not None
    assert measured.top1 is not None
    assert measured.kl is not None
    assert measured.kl_p99 is not None
    perplexity, own = (float(torch.cat(each).mean().exp()) for each in (losses, own_losses))
    assert measured.perplexity.value == pytest.approx(perplexity, rel=1e-5)
    assert of_float.perplexity.value == pytest.approx(own, rel=1e-5)
    assert measured.perplexity_loss.value == pytest.approx(perplexity / own - 1, abs=1e-5)
    apart = torch.cat(divergences)
    assert measured.kl.value == pytest.approx(float(apart.mean()), rel=1e-3)
    assert measured.kl_p99.value == pytest.approx(float(np.quantile(apart.numpy(), TAIL)), rel=1e-2)
    assert measured.top1.value == pytest.approx(float(torch.cat(agreements).double().mean()))
    assert 0 < measured.kl.value < 1
    assert 0.5 < measured.top1.value < 1
