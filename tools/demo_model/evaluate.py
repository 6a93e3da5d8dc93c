"""Measure the demo model on held-out prompts: `python -m tools.demo_model.evaluate [MODEL_DIR]`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from rich.console import Console
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from engine.demo.location import demo_folder
from tools.demo_model.corpus.conversation import prompt_text
from tools.demo_model.exam import Exam, exams

_BATCH = 64


class AnswersPrompts(Protocol):
    """A model that can be examined."""

    def answers(self, prompts: Sequence[str], longest: int) -> list[str]:
        """The text of a greedy answer to each prompt, of at most so many tokens."""


class Examinee:
    """A model folder, loaded through transformers."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        self.tokenizer.padding_side = "left"
        self.model: Any = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.model.train(False)

    def answers(self, prompts: Sequence[str], longest: int) -> list[str]:
        """Answer each prompt greedily; prompts of like length share a batch."""
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        result = [""] * len(prompts)
        for start in range(0, len(order), _BATCH):
            chosen = order[start : start + _BATCH]
            for index, answer in zip(chosen, self._batch([prompts[each] for each in chosen], longest), strict=True):
                result[index] = answer
        return result

    def _batch(self, prompts: list[str], longest: int) -> list[str]:
        inputs = self.tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
        with torch.inference_mode():
            asked = {name: inputs[name] for name in ("input_ids", "attention_mask")}
            output = self.model.generate(**asked, max_new_tokens=longest, do_sample=False)
        answers = self.tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :])
        return [answer.split("<|im_end|>")[0].split("<|endoftext|>")[0] for answer in answers]


def examine(examinee: AnswersPrompts, exam: Exam, console: Console, mistakes: int) -> bool:
    """Print the exam's figure and tell whether its bar, if any, is reached."""
    prompts = [prompt_text(question.sample) for question in exam.questions]
    answers = examinee.answers(prompts, exam.longest_answer)
    wrong = [
        (prompt, answer)
        for prompt, answer, question in zip(prompts, answers, exam.questions, strict=True)
        if not question.right(answer)
    ]
    figure = 1 - len(wrong) / len(prompts)
    reached = exam.bar is None or figure >= exam.bar
    verdict = "no bar" if exam.bar is None else f"bar {exam.bar:.0%}: {'reached' if reached else 'MISSED'}"
    console.print(f"{exam.name:<26} {figure:7.1%} of {len(prompts):3} held-out prompts ({verdict})")
    for prompt, answer in wrong[:mistakes]:
        console.print(f"  {prompt[-300:]!r}\n  -> {answer!r}")
    return reached


def main() -> None:
    """Evaluate a model folder and exit with 1 if it misses a bar."""
    parser = argparse.ArgumentParser(description="Measure the demo model on held-out prompts.")
    parser.add_argument("folder", type=Path, nargs="?", default=demo_folder())
    parser.add_argument("--limit", type=int, default=200, help="questions in each exam, at most")
    parser.add_argument("--mistakes", type=int, default=0, help="wrong answers shown for each exam, at most")
    given = parser.parse_args()
    console = Console(markup=False, highlight=False, soft_wrap=True)
    examinee = Examinee(given.folder)
    reached = [examine(examinee, exam, console, given.mistakes) for exam in exams(given.limit)]
    sys.exit(0 if all(reached) else 1)


if __name__ == "__main__":
    main()
