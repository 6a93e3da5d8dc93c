"""Scores of the tokens that llama-perplexity scores: `python deploy/quality_halves.py BUNDLE REFERENCE TEXT LOGITS`.

LOGITS is the file that it wrote of the float checkpoint. Its tokens must be those that the bundle makes of TEXT. Of
each window the tokens behind the second half of its positions are scored, as there. Prints JSON.
"""

import json
import struct
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from quality_checks import FIRST

from engine.errors import BundleError, HexserveError
from engine.evaluation.evaluate import evaluate
from engine.evaluation.models import open_bundle
from engine.evaluation.statistics import joined
from engine.evaluation.windows import TextWindow

MAGIC = b"_logits_"
HEADER = struct.Struct("<iii")  # tokens of a window, of the vocabulary, windows


def scores(bundle: Path, reference: Path, text: Path, logits: Path) -> dict[str, float]:
    """Perplexities, mean KL and top-1. HexserveError when something cannot be opened or the tokens are others."""
    windows = windows_in(logits)
    with ExitStack() as stack:
        models = [open_bundle(path.name, path, None, stack) for path in (bundle, reference)]
        wanted = sum(len(window.tokens) for window in windows)
        own = models[0].vocabulary.tokens(text.read_text(encoding="utf-8"), wanted)
        if list(own) != [token for window in windows for token in window.tokens]:
            raise BundleError("the text is other tokens to llama.cpp")
        (found,), _ = evaluate(models[:1], models[1], windows, lambda _tokens: None)
    each = joined(found)
    if each.reference_losses is None or each.divergences is None or each.agreements is None:
        raise BundleError("nothing was compared")
    return {
        "tokens": len(each.losses),
        "perplexity": float(np.exp(each.losses.mean())),
        "float_perplexity": float(np.exp(each.reference_losses.mean())),
        "kl": float(each.divergences.mean()),
        "top1": float(each.agreements.mean()),
    }


def windows_in(logits: Path) -> list[TextWindow]:
    """The windows whose logits are in a file of llama-perplexity, the first half of each only read."""
    with logits.open("rb") as stream:
        if stream.read(len(MAGIC)) != MAGIC:
            raise BundleError(f"{logits} was not written by llama-perplexity")
        context, _, count = HEADER.unpack(stream.read(HEADER.size))
        tokens = np.fromfile(stream, np.int32, context * count).reshape(count, context)
    return [TextWindow(tuple(each), FIRST) for each in tokens.tolist()]


def main() -> int:
    """Print the scores; 1 after one line on stderr."""
    try:
        print(json.dumps(scores(*(Path(each) for each in sys.argv[1:5]))))
    except HexserveError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
