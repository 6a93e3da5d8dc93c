"""Ratios of hexserve to llama-server against the bars, as Markdown. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

SPEED_BARS = {(128, 1): 1.5, (128, 4): 1.5, (128, 8): 1.7, (128, 16): 1.7, (1024, 1): 1.5, (1024, 4): 1.5}
RIVAL_SPEED_BAR, LONE_RIVAL_BAR = 1.0, 0.95  # of every server beyond llama-server; of a lone client
WARM_START_BAR, COLD_START_BAR = 4.0, 20.0  # seconds
FIRST_TOKEN_BAR, GAP_P95_BAR, MEMORY_BAR, WARM_BAR = 0.5, 1.2, 1.3, 0.1


@dataclass(frozen=True, slots=True)
class PeerRatio:
    """One figure over another, such as hexserve's over llama-server's.

    bar: None = none is set; is_least: the bar is a least, not a most.
    """

    load: str
    name: str
    value: float | None
    bar: float | None = None
    is_least: bool = False

    @property
    def holds(self) -> bool | None:
        """Whether the bar holds; None without one or without a figure."""
        if self.bar is None or self.value is None:
            return None
        return self.value >= self.bar if self.is_least else self.value <= self.bar


def ratios_of_load(prompt_tokens: int, figures: dict[str, Any], baseline: str = "") -> list[PeerRatio]:
    """From what `hexserve bench --json` wrote about one length of prompt, the other server being the first one.

    baseline: its name where it is not llama-server; bars are fewer then.
    """
    found = []
    for each in figures["comparisons"]:
        clients = each["clients"]
        load = f"{prompt_tokens} in, {figures['load']['max_tokens']} out, {clients} client{'s' * (clients > 1)}"
        bars: tuple[float | None, ...] = SPEED_BARS.get((prompt_tokens, clients)), FIRST_TOKEN_BAR, GAP_P95_BAR
        if baseline:
            load, bars = f"{baseline}: {load}", (LONE_RIVAL_BAR if clients == 1 else RIVAL_SPEED_BAR, None, None)
        found += [
            PeerRatio(load, "output tok/s", each["tokens_per_second"], bars[0], is_least=True),
            PeerRatio(load, "first token", each["first_token_p50"], bars[1]),
            PeerRatio(load, "median gap", each["gap_p50"]),
            PeerRatio(load, "p95 gap", each["gap_p95"], bars[2]),
        ]
    return found


def ratios_of_prefix(tokens: int, figures: dict[str, Any]) -> list[PeerRatio]:
    """What a prefix that was sent before saves: hexserve's own first token warm over cold, and against the other."""
    effects = {each["server"]: each for each in figures["shared_prefix"]}
    other, own = effects[0], effects[1]
    load = f"shared prefix of {tokens}"
    return [
        PeerRatio(load, "warm / cold, hexserve", own["warm_over_cold"], WARM_BAR),
        PeerRatio(load, "warm / cold, llama-server", other["warm_over_cold"]),
        PeerRatio(load, "first token, warm", _over(own["warm_s"], other["warm_s"])),
    ]


def ratios_of_start(cold_s: float, warm_s: float, other_s: float) -> list[PeerRatio]:
    """From the command to the end of the first answer; hexserve's own seconds have bars. cold: compiles the file."""
    load = "start to first answer"
    return [
        PeerRatio(load, "seconds of hexserve, compiling the file", cold_s, COLD_START_BAR),
        PeerRatio(load, "seconds of hexserve", warm_s, WARM_START_BAR),
        PeerRatio(f"{load}, {warm_s:.1f} / {other_s:.1f} s", "start", warm_s / other_s),
    ]


def ratios_of_memory(own: tuple[int, int], other: tuple[int, int]) -> list[PeerRatio]:
    """Peaks as (rss, pss) in bytes; no figure where there is no pss."""
    return [
        PeerRatio(f"peak memory, {ours / 1e9:.2f} / {theirs / 1e9:.2f} GB", name, _over(ours, theirs), MEMORY_BAR)
        for name, ours, theirs in zip(("RSS", "PSS"), own, other, strict=True)
    ]


def table(found: Sequence[PeerRatio], named: str = "hexserve / llama-server") -> str:
    """Markdown, one row for each ratio. named: what stands above the names."""
    lines = [f"| load | {named} | ratio | bar | holds |", "|---|---|---|---|---|"]
    for each in found:
        lines.append(f"| {each.load} | {each.name} | {_number(each.value)} | {_bar(each)} | {_holds(each)} |")
    return "\n".join(lines) + "\n"


def _over(part: float | None, whole: float | None) -> float | None:
    return part / whole if part and whole else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _bar(each: PeerRatio) -> str:
    return "" if each.bar is None else f"{'≥' if each.is_least else '≤'} {each.bar:g}"


def _holds(each: PeerRatio) -> str:
    return {None: "", True: "yes", False: "no"}[each.holds]
