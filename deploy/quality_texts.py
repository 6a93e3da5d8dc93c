"""The embedded model's texts: what its training held out, and what it may be calibrated on."""

from collections.abc import Iterator
from itertools import zip_longest
from random import Random

from engine.demo.corpus.conversation import Sample, render
from engine.demo.corpus.mixture import draw
from engine.demo.exam import exams

CALIBRATION_SAMPLES = 400
QUESTIONS = 60


def held_out_text() -> str:
    """Questions of every exam with their answers, in turns."""
    return "".join(_held_out())


def calibration_text() -> str:
    """Samples of the mixture that the model was trained on."""
    rng = Random("calibration")
    return "".join(_written(draw(rng)) for _ in range(CALIBRATION_SAMPLES))


def _held_out() -> Iterator[str]:
    for questions in zip_longest(*(exam.questions for exam in exams(QUESTIONS))):
        yield from (_written(question.sample) for question in questions if question is not None)


def _written(sample: Sample) -> str:
    return "".join(span.text for span in render(sample))
