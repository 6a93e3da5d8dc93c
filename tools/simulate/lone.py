"""`python -m tools.simulate --lone`: one stream on the NPU beside the same on the CPU of the same laptop.

Rates are tokens a second at a context of so many KV slots: QAIRT and llama.cpp's Q4_0 on X Elite, as published.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from server.commands.tables import table
from tools.simulate.published import ROWS, HubFigures, HubSpeed, hub_figures
from tools.simulate.report import write

TITLES = ("on", "prefill\ntok/s", "decode\ntok/s", "first\ntoken s", "whole\nanswer s", "CPU faster\nfrom")


@dataclass(frozen=True, slots=True)
class LoneRates:
    """decode and prefill in tokens a second."""

    decode: float
    prefill: float

    def seconds(self, prompt: int, output: int) -> float:
        """From the request to the last token of its answer; the first one comes with the prompt's last step."""
        return prompt / self.prefill + (output - 1) / self.decode


@dataclass(frozen=True, slots=True)
class Processors:
    """One model in one context on both."""

    model: str
    context: int
    npu: LoneRates
    cpu: LoneRates

    def break_even(self, prompt: int) -> float | None:
        """Tokens of the answer from which the CPU is faster altogether; None if it never is."""
        lead_s = prompt / self.cpu.prefill - prompt / self.npu.prefill
        gain_s = 1.0 / self.npu.decode - 1.0 / self.cpu.decode
        return 1.0 + lead_s / gain_s if gain_s > 0 else None


def both_processors(figures: HubFigures) -> tuple[Processors, ...]:
    """Every model and context that the laptop's NPU and CPU both have a rate for, by GenieX."""
    found: dict[tuple[str, int], dict[str, HubSpeed]] = {}
    for speed in figures.speeds:
        if speed.device == "x-elite" and speed.runtime != "genie":
            found.setdefault((speed.model, speed.context), {})[speed.processor] = speed
    return tuple(
        Processors(model, context, _rates(kept["npu"]), _rates(kept["cpu"]))
        for (model, context), kept in sorted(found.items())
        if len(kept) == 2
    )


def _rates(speed: HubSpeed) -> LoneRates:
    return LoneRates(speed.decode_per_s, 1000.0 * ROWS / speed.first_token_ms)


def run_lone(prompt: int, output: int, json_file: Path | None) -> None:
    """Print both for every model whose context holds the request. ValueError when none does, or for the file."""
    figures = hub_figures()
    known = both_processors(figures)
    fitting = [each for each in known if prompt + output <= each.context]
    if not fitting:
        longest = max(each.context for each in known)
        raise ValueError(f"--prompt {prompt} and --output {output} make more tokens than the {longest} published")
    console = Console()
    console.print(_table(fitting, prompt, output))
    source = f"X Elite, published by AI Hub ({figures.source}): QAIRT on the NPU, llama.cpp Q4_0 on the CPU"
    console.print(source, highlight=False, soft_wrap=True)
    if json_file is not None:
        found = [dataclasses.asdict(each) | {"break_even": each.break_even(prompt)} for each in fitting]
        write("--json", json_file, json.dumps(found, indent=1) + "\n")


def _table(fitting: list[Processors], prompt: int, output: int) -> Table:
    rows = []
    for each in fitting:
        tokens = each.break_even(prompt)
        faster = "never" if tokens is None else f"{tokens:.0f} tokens"
        rows.append((each.model, "NPU", *_cells(each.npu, prompt, output), ""))
        rows.append((f"  {each.context} slots", "CPU", *_cells(each.cpu, prompt, output), faster))
    return table(("model", *TITLES), rows, f"One stream, {prompt} tokens in, {output} out", words=1)


def _cells(rates: LoneRates, prompt: int, output: int) -> tuple[str, ...]:
    times = (f"{rates.seconds(prompt, tokens):.2f}" for tokens in (1, output))
    return (f"{rates.prefill:.0f}", f"{rates.decode:.1f}", *times)
