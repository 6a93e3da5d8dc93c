"""What llama-perplexity says of a GGUF file beside floats: how it is printed, and how it is stored. Pure."""

import re
from collections.abc import Iterable

import msgspec

NUMBER = r" *:? +(-?[0-9.]+) ± +([0-9.]+)"
PRINTED = {
    "kl": re.compile(rf"^Mean +KLD{NUMBER}", re.MULTILINE),
    "same_top": re.compile(rf"^Same top p{NUMBER}", re.MULTILINE),
    "perplexity": re.compile(rf"^Mean PPL\(Q\){NUMBER}", re.MULTILINE),
    "float_perplexity": re.compile(rf"^Mean PPL\(base\){NUMBER}", re.MULTILINE),
    "ratio": re.compile(rf"^Mean PPL\(Q\)/PPL\(base\){NUMBER}", re.MULTILINE),
}
PAIR = r" +(-?[0-9.]+) ± +([0-9.]+)"
RUNNING = re.compile(rf"^ *([0-9]+){PAIR}{PAIR}{PAIR}{PAIR} %{PAIR} %", re.MULTILINE)
PERCENT = 100


class PrintedMean(msgspec.Struct, frozen=True):
    """A mean and its standard error, both as printed."""

    mean: float
    error: float


class FirstWindows(msgspec.Struct, frozen=True):
    """The first windows alone, with the five decimals that are printed on the way."""

    windows: int
    kl: PrintedMean
    same_top: PrintedMean


class Fidelity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file beside floats, on the tokens of the second halves of windows.

    model: its name among the real models. kind: how the file stores weights; "published" is the file as it came.
    floats: of what file, its own or the published one. kl: in nats. same_top: a share. ratio: of the file's perplexity
    to that of the floats. The tool keeps no prediction of the floats that is more than 16 nats below the likeliest, so
    their perplexity is too low and the ratio too high by the same factor: about what the ratio of F16 files shows.
    beginning: None in figures that were stored before it was kept.
    """

    model: str
    kind: str
    floats: str
    kl: PrintedMean
    same_top: PrintedMean
    perplexity: PrintedMean
    float_perplexity: PrintedMean
    ratio: PrintedMean
    beginning: FirstWindows | None = None


class LlamaFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of them beside what made them.

    text_sha256: of the text. context: tokens of a window, of which the last `scored` count. tokens: by model the
    SHA-256 of the windows' token ids, each of four bytes, the lowest first.
    """

    llama_cpp: str
    commands: dict[str, str]
    text_sha256: str
    context: int
    windows: int
    scored: int
    tokens: dict[str, str]
    fidelity: tuple[Fidelity, ...]

    def of(self, model: str, kind: str, floats: str = "own") -> Fidelity:
        """One of them. KeyError when it is not stored."""
        for each in self.fidelity:
            if (each.model, each.kind, each.floats) == (model, kind, floats):
                return each
        raise KeyError(f"{kind} of {model} beside the {floats} floats")


def fidelity_in(printed: str, place: tuple[str, str, str], beginning: int) -> Fidelity:
    """What `llama-perplexity --kl-divergence` printed. place: model, kind, floats. ValueError when it is not there."""
    found = {name: pattern.search(printed) for name, pattern in PRINTED.items()}
    if missing := [name for name, match in found.items() if match is None]:
        raise ValueError(f"llama-perplexity printed no {missing[0]}")
    values = {name: estimate(match.groups()) for name, match in found.items() if match is not None}
    same_top = _share(values.pop("same_top"))
    kl, perplexity, float_perplexity, ratio = values.values()
    return Fidelity(*place, kl, same_top, perplexity, float_perplexity, ratio, _beginning(printed, beginning))


def estimate(pair: Iterable[str]) -> PrintedMean:
    """Of two printed numbers."""
    mean, error = (float(number) for number in pair)
    return PrintedMean(mean, error)


def _beginning(printed: str, windows: int) -> FirstWindows:
    for row in RUNNING.finditer(printed):
        if int(row[1]) == windows:
            return FirstWindows(windows, estimate(row.groups()[5:7]), _share(estimate(row.groups()[9:11])))
    raise ValueError(f"llama-perplexity printed no row of {windows} windows")


def _share(percent: PrintedMean) -> PrintedMean:
    return PrintedMean(round(percent.mean / PERCENT, 6), round(percent.error / PERCENT, 6))
