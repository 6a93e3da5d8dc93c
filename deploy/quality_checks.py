"""Our scores beside those of llama.cpp's own perplexity tool: what was found, the table and the bars. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

CONTEXT = 512
FIRST = CONTEXT // 2 + 1  # llama-perplexity scores what follows the second half of a window's positions
PERPLEXITY_APART, KL_APART = 1.002, 1.02
PERPLEXITY = re.compile(r"^Mean PPL\(Q\) +: +([0-9.]+)", re.MULTILINE)
FLOAT_PERPLEXITY = re.compile(r"Final estimate: PPL = ([0-9.]+)")
DIVERGENCE = re.compile(r"^Mean +KLD: +(-?[0-9.]+) ± +([0-9.]+)", re.MULTILINE)
SAME_TOP = re.compile(r"^Same top p: +([0-9.]+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Scores:
    """Of the tokens in the second halves of windows. float_perplexity: of the float checkpoint. kl: mean, in nats."""

    perplexity: float
    float_perplexity: float
    kl: float
    top1: float


@dataclass(frozen=True, slots=True)
class CrossCheck:
    """The same floats scored twice. kl_error: standard error of llama.cpp's mean.

    computed: scores of the file as llama.cpp computes with it, its products with 8-bit activations; None for ours.
    """

    tokens: int
    llama: Scores
    own: Scores
    kl_error: float
    computed: Scores | None = None

    @property
    def kl_apart(self) -> float:
        """The larger KL over the smaller."""
        return _apart(self.llama.kl, self.own.kl)

    @property
    def perplexity_apart(self) -> float:
        """The larger perplexity over the smaller: of the floats or of the float checkpoint, what is further apart."""
        return max(
            _apart(self.llama.perplexity, self.own.perplexity),
            _apart(self.llama.float_perplexity, self.own.float_perplexity),
        )

    @property
    def agrees(self) -> bool:
        """Whether both say the same."""
        return self.kl_apart <= KL_APART and self.perplexity_apart <= PERPLEXITY_APART


def perplexity_in(printed: str) -> float:
    """What `llama-perplexity` printed of the float checkpoint. ValueError when it is not there.

    The one that it prints beside divergences is of predictions that it has cut off 16 nats below the likeliest.
    """
    found = FLOAT_PERPLEXITY.search(printed)
    if found is None:
        raise ValueError("llama-perplexity printed no perplexity")
    return float(found[1])


def scores_in(printed: str, float_perplexity: float) -> tuple[Scores, float]:
    """What `llama-perplexity --kl-divergence` printed, and the standard error of the KL. ValueError when it is not."""
    found = [pattern.search(printed) for pattern in (PERPLEXITY, DIVERGENCE, SAME_TOP)]
    if None in found:
        raise ValueError("llama-perplexity printed no statistics of divergence")
    perplexity, divergence, same = (each for each in found if each is not None)
    scores = Scores(float(perplexity[1]), float_perplexity, float(divergence[1]), float(same[1]) / 100)
    return scores, float(divergence[2])


def check_table(found: Sequence[tuple[str, CrossCheck]]) -> str:
    """Markdown, one row for each file; '' without any."""
    if not found:
        return ""
    lines = [
        f"Tokens {FIRST} to {CONTEXT - 1} of each window, by llama-perplexity / by hexserve eval:",
        "",
        "| file | tokens | KL | perplexity | of the float checkpoint | top-1 % | agree | KL as llama.cpp computes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, each in found:
        llama, own = each.llama, each.own
        computed = "" if each.computed is None else f"{each.computed.kl:.3g}"
        cells = (
            name,
            str(each.tokens),
            f"{llama.kl:.3g} ± {each.kl_error:.1g} / {own.kl:.3g}",
            f"{llama.perplexity:.2f} / {own.perplexity:.2f}",
            f"{llama.float_perplexity:.2f} / {own.float_perplexity:.2f}",
            f"{100 * llama.top1:.1f} / {100 * own.top1:.1f}",
            "yes" if each.agrees else "no",
            computed,
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _apart(one: float, other: float) -> float:
    low, high = sorted((one, other))
    return high / low if low > 0 else float("inf")
