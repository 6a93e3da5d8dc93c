"""Writes the texts that the embedded models are calibrated and checked with: `python -m tools.demo_model.texts`.

JSON lines below `engine/demo/texts`, one string each, as `hexserve compile --calibration` reads them.
"""

import json
import sys
from collections.abc import Iterator
from itertools import zip_longest
from random import Random

from engine.demo.location import CALIBRATION, HELD_OUT
from tools.demo_model.corpus.conversation import Sample, render
from tools.demo_model.corpus.mixture import draw
from tools.demo_model.exam import exams

SAMPLES = 1300  # 145,000 tokens: `--quality best` reads 65,536
QUESTIONS = 60  # of each exam


def calibration() -> Iterator[str]:
    """Samples of the mixture that the models were trained on."""
    rng = Random("calibration")
    return (_written(draw(rng)) for _ in range(SAMPLES))


def held_out() -> Iterator[str]:
    """A question of each exam with its answer, then the next of each: what training left out."""
    for questions in zip_longest(*(exam.questions for exam in exams(QUESTIONS))):
        yield from (_written(question.sample) for question in questions if question is not None)


def lines(texts: Iterator[str]) -> str:
    """As a file has them."""
    return "".join(f"{json.dumps(text, ensure_ascii=False)}\n" for text in texts)


def main() -> int:
    """Write both files."""
    for path, texts in ((CALIBRATION, calibration()), (HELD_OUT, held_out())):
        path.parent.mkdir(exist_ok=True)
        path.write_text(lines(texts), encoding="utf-8", newline="\n")
    return 0


def _written(sample: Sample) -> str:
    return "".join(span.text for span in render(sample))


if __name__ == "__main__":
    sys.exit(main())
