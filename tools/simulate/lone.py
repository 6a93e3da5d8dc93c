"""`python -m tools.simulate --lone`: one stream on the NPU beside the same on the CPU."""

import dataclasses
import json
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tools.simulate.processors import LoneRates, Processors, both_processors
from tools.simulate.published import hub_figures

TITLES = (
    "on",
    "prefill\ntok/s",
    "decode\ntok/s",
    "first\ntoken s",
    "whole\nanswer s",
    "CPU faster\nfrom",
)


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
        try:
            json_file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise ValueError(f"--json {json_file} cannot be written: {error.strerror or error}") from None


def _table(fitting: list[Processors], prompt: int, output: int) -> Table:
    title = f"One stream, {prompt} tokens in, {output} out"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("model", no_wrap=True)
    for heading in TITLES:
        table.add_column(heading, justify="right", no_wrap=True)
    for each in fitting:
        tokens = each.break_even(prompt)
        table.add_row(each.model, "NPU", *_cells(each.npu, prompt, output), "")
        table.add_row(
            f"  {each.context} slots",
            "CPU",
            *_cells(each.cpu, prompt, output),
            "never" if tokens is None else f"{tokens:.0f} tokens",
        )
    return table


def _cells(rates: LoneRates, prompt: int, output: int) -> tuple[str, ...]:
    return (
        f"{rates.prefill:.0f}",
        f"{rates.decode:.1f}",
        f"{rates.seconds(prompt, 1):.2f}",
        f"{rates.seconds(prompt, output):.2f}",
    )
