"""A GGUF file compiled by default settings and read through the engine that serves, against its own floats."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from engine.compile.arguments import CompileArguments, Quant, default_quant
from engine.compile.arguments import Target as CompileTarget
from engine.compile.pipeline import compile_bundle
from engine.compile.progress import SilentProgress
from engine.evaluation.evaluate import Quality, TextWindow, evaluate, quality, windows_of
from engine.evaluation.models import open_bundle, open_served

SEED = 0
LEAST_TOKENS = 2  # to check a bundle with; it is measured here


@dataclass(frozen=True, slots=True)
class ServedFile:
    """What a client gets of one file. kv: the type of the caches that it was given by default."""

    quality: Quality
    kv: str
    size: int


def read_as_served(files: Sequence[Path], text: str, context: int, count: int, folder: Path) -> list[ServedFile]:
    """Figures over the second halves of `count` windows of `context` tokens, as llama-perplexity takes them: of a
    file, and of others with its floats and tokens. folder: gets the bundles. CompileError, BundleError, EngineFailure.
    """
    exact = CompileArguments(files[0], folder / "floats", quant=Quant.FP32, parity_tokens=LEAST_TOKENS)
    compile_bundle(exact, SilentProgress())
    caches, models = [], []
    with ExitStack() as stack:
        for number, file in enumerate(files):
            quant, served = default_quant(CompileTarget.CPU, file), folder / f"served-{number}"
            asked = CompileArguments(file, served, quant=quant, parity_tokens=LEAST_TOKENS)
            caches.append(compile_bundle(asked, SilentProgress()).kv_dtype)
            models.append(open_served(file.name, served, "", stack))
        windows_of(models, text, context * count, context, 0)  # refuses a file to which it is other tokens
        reference = open_bundle("floats", exact.output, None, stack)
        vocabulary = models[0].vocabulary
        windows = second_halves(vocabulary.tokens(text, context * count), context, vocabulary.bos)
        found, _ = evaluate(models, reference, windows, lambda _: None)
    told = zip(found, caches, models, strict=True)
    return [ServedFile(quality(scores, SEED), kv, model.size) for scores, kv, model in told]


def second_halves(tokens: Sequence[int], context: int, bos: Sequence[int] = ()) -> list[TextWindow]:
    """Windows side by side, of which the tokens behind the first position of the second half are predicted.

    bos: what the model's texts begin with: it stands before the text, and in place of each window's first tokens.
    """
    every = [*bos, *tokens]
    starts = range(0, len(every) - context + 1, context)
    windows = [(*bos, *every[start + len(bos) : start + context]) for start in starts]
    return [TextWindow(window, context // 2 + 1) for window in windows]
