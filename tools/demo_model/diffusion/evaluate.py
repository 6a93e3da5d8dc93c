"""Measure the block-diffusion model on held-out text: `python -m tools.demo_model.diffusion.evaluate [MODEL_DIR]`."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from tokenizers import Tokenizer

from engine.compile.arguments import ExportArguments
from engine.compile.graphs.block_export import export_blocks
from engine.compile.progress import SilentProgress
from engine.demo.location import diffusion_folder
from tools.block_loop import BlockLoop, ExportedGraph, LoopOptions, StepKind
from tools.demo_model.evaluate import examine
from tools.demo_model.exam import exams
from tools.demo_model.network import END_OF_TEXT, END_OF_TURN

CONTEXT = 1024  # of the longest prompt with its answer


class DiffusionExaminee:
    """A model folder, exported below `scratch` and decoded block by block; counts tokens and steps of all its answers.

    A step denoises one block; commits and the steps of the prompt are not counted.
    """

    def __init__(self, folder: Path, scratch: Path, confidence: float) -> None:
        export_blocks(ExportArguments(folder, scratch / "graph", CONTEXT), SilentProgress())
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokens = self.steps = 0
        self._graph = ExportedGraph(scratch / "graph")
        self._confidence = confidence

    def answers(self, prompts: Sequence[str], longest: int) -> list[str]:
        """Answer each prompt greedily."""
        return [self._answer(prompt, longest) for prompt in prompts]

    def _answer(self, prompt: str, longest: int) -> str:
        loop = BlockLoop(self._graph.export, self._graph.run)
        ids = self.tokenizer.encode(prompt, add_special_tokens=False).ids
        answer = loop.generate(ids, LoopOptions(longest, self._confidence))
        self.tokens += len(answer)
        self.steps += loop.steps.count(StepKind.ITERATION)
        text = [token for token in answer if token not in (END_OF_TURN, END_OF_TEXT)]
        return self.tokenizer.decode(text, skip_special_tokens=False)


def main() -> None:
    """Print each exam's figure and the tokens that a step gave."""
    parser = argparse.ArgumentParser(description="Measure the block-diffusion demo model on held-out prompts.")
    parser.add_argument("folder", type=Path, nargs="?", default=diffusion_folder())
    parser.add_argument("--limit", type=int, default=200, help="questions in each exam, at most")
    parser.add_argument("--confidence", type=float, default=0.9, help="a token surer than this is kept")
    parser.add_argument("--mistakes", type=int, default=0, help="wrong answers shown for each exam, at most")
    given = parser.parse_args()
    console = Console(markup=False, highlight=False, soft_wrap=True)
    all_tokens = all_steps = 0
    with TemporaryDirectory(prefix="hexserve-") as scratch:
        examinee = DiffusionExaminee(given.folder, Path(scratch), given.confidence)
        for exam in exams(given.limit):
            examine(examinee, exam, console, given.mistakes)
            console.print(f"  {examinee.tokens / examinee.steps:.2f} tokens a step")
            all_tokens, all_steps = all_tokens + examinee.tokens, all_steps + examinee.steps
            examinee.tokens = examinee.steps = 0
    console.print(f"all answers together: {all_tokens / all_steps:.2f} tokens a step")


if __name__ == "__main__":
    main()
