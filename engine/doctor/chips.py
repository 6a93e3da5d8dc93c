"""Which chip hides behind the name that a system gives its processor. Pure."""

import re

from engine.graphs.onnx_qnn import HtpTarget

X_ELITE = HtpTarget(60, 73)
X2_ELITE = HtpTarget(88, 81)
# The part of the chip's name that tells its generation; the first match counts. Chips: soc_model, Hexagon version.
# X1P42100 and X126100 are smaller dies of the same generation, with the same Hexagon; the names of Linux' device trees
# are hamoa and purwa for the first generation, glymur and mahua for the second.
CHIPS = (
    (("x2e", "x2 elite", "x2p", "x2 plus", "sc8480", "glymur", "mahua"), X2_ELITE),
    (("x1e", "x elite", "x1p", "x plus", "x126", "sc8380", "sc8340", "hamoa", "purwa"), X_ELITE),
    (("sm8850",), HtpTarget(87, 81)),
    (("sm8750",), HtpTarget(69, 79)),
    (("sm8650",), HtpTarget(57, 75)),
    (("sm8550", "qcs8550"), HtpTarget(43, 73)),
)
# Laptops of before; their Hexagon is older than v73, for which nothing here is made.
TOO_OLD = re.compile(r"snapdragon.*\b(?:7c|8c|8cx)\b|microsoft\W+(?:r\W+)?sq\d|\bsc(?:7180|7280|8180|8280)")
MAKERS = ("snapdragon", "qualcomm", "oryon", "qcom")


def chip_of(name: str) -> HtpTarget | None:
    """The chip behind a processor's name, None when it is none that is known."""
    lowered = name.lower()
    return next((chip for marks, chip in CHIPS if any(mark in lowered for mark in marks)), None)


def is_too_old(name: str) -> bool:
    """Whether this is a Snapdragon of a generation that nothing here is made for."""
    return chip_of(name) is None and TOO_OLD.search(name.lower()) is not None


def is_snapdragon(name: str) -> bool:
    """Whether the name is one of Qualcomm's, known or not."""
    return chip_of(name) is not None or is_too_old(name) or any(mark in name.lower() for mark in MAKERS)
