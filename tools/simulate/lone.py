"""`python -m tools.simulate --lone`: one stream on the NPU beside the same on the CPU."""

import dataclasses
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from server.commands.tables import table
from tools.simulate.processors import LoneRates, Processors, both_processors
from tools.simulate.published import hub_figures
from tools.simulate.report import write

TITLES = ("on", "prefill\ntok/s", "decode\ntok/s", "first\ntoken s", "whole\nanswer s", "CPU faster\nfrom")


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
    return (
        f"{rates.prefill:.0f}",
        f"{rates.decode:.1f}",
        f"{rates.seconds(prompt, 1):.2f}",
        f"{rates.seconds(prompt, output):.2f}",
    )
