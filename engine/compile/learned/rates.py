"""How much is learned of what, and at which rate; needs no torch."""

from dataclasses import dataclass

BATCH_TOKENS = 1024  # of one step
HELD_BACK = 8  # every so many-th text
WARM_UP = 10  # steps
JUDGEMENTS = 4  # how often a state is judged
HEAD_TOKENS = 256  # whose logits are in memory at once
# Of the cross entropy of the text's tokens, beside all of the divergence. What it wins grows with it, what it costs
# with its square: with 0.03 the text was learned, and the divergence was no better than before.
TEXT_SHARE = 0.01
MOST_DIVERGENCE = 1.01  # of the given state's: whatever the text's tokens win, a state that has more is not taken


@dataclass(frozen=True, slots=True)
class LearningRates:
    """steps of Adam; scales: its rate for logarithms of scales; places: for numbers that round to codes, 0 = fixed."""

    steps: int
    scales: float
    places: float


# In rounds. More steps of places turn more codes than calibration text can judge.
LAYER_RATES = (LearningRates(steps=100, scales=1e-3, places=2e-3),)
MODEL_RATES = (LearningRates(steps=240, scales=1e-3, places=0.0),)
