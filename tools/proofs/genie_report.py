"""Genie against hexserve on the same binaries: the same tokens, in how many steps?

    python -m tools.proofs.genie_report [BUNDLE] [--clients 8] [--tokens 8] [--widest]

Qualcomm's libGenie answers 20 prompts one after the other, as it does; `hexserve serve` answers the same prompts from
several clients at once. Prints the steps each of them ran and compares the tokens. Without BUNDLE the embedded demo
model is compiled first. Needs an installed `hexserve[qnn]` (and `compile` without BUNDLE); on x86-64 Linux both run in
the HTP emulator. hexserve chooses its graphs by measured times, which mean nothing there; `--widest` keeps it from
taking narrow ones.
"""

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from engine.bundle.manifest import GraphKind, Manifest, load_manifest
from engine.errors import BundleError
from engine.text.prompt import PromptMaker
from engine.text.renderer import ChatTemplate
from server.commands.own_server import ServerFailed
from tools.proofs.device_smoke import ANSWER_S, compile_demo, serving
from tools.proofs.genie_reference import GenieAnswers, genie_greedy

CITIES = ("France", "Peru", "Japan", "Italy", "Spain", "Egypt", "Canada", "Norway", "Chile", "Kenya")
QUESTIONS = (
    *(f"What is the capital of {country}?" for country in CITIES),
    *("Hello!", "Who are you?", "Thank you.", "What is 17 + 25?", "What is 3 + 4?"),
    *("Copy this list: apple, pear, plum", "How are you?", "Tell me a joke.", "What can you do?"),
    "Name a fruit. Then say in one word which color it has, in which country it grows, and at which time of the year.",
)
COLUMNS = (SpinnerColumn(), TextColumn("{task.description}: {task.completed:.0f} steps"), TimeElapsedColumn())


@dataclass(frozen=True)
class Side:
    """What one engine did: an answer for each prompt, and its steps by their number of rows where that is known."""

    name: str
    texts: list[str]
    steps: int
    by_rows: dict[int, int]
    rows_used: int = 0


def main() -> int:
    """0 when every answer is the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", nargs="?", type=Path, help="an NPU bundle of hexserve; none = compile the demo model")
    parser.add_argument("--clients", type=int, default=8, help="how many ask hexserve at the same time")
    parser.add_argument("--tokens", type=int, default=8, help="most tokens of an answer")
    parser.add_argument("--widest", action="store_true", help="hexserve takes its widest graph for every step")
    parser.add_argument("--target", default="x-elite", help="chip to compile the demo for")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hexserve-genie-") as name:
        scratch = Path(name)
        bundle = options.bundle or scratch / "demo"
        try:
            if options.bundle is None:
                compile_demo(options.target, bundle)
            more = ("--deterministic",) if options.widest else ()
            sides = compare(bundle, options.clients, options.tokens, scratch, more)
        except (BundleError, RuntimeError, ServerFailed, httpx.HTTPError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    print("\n".join(table(*sides)))
    return int(sides[0].texts != sides[1].texts)


def compare(bundle: Path, clients: int, count: int, scratch: Path, more: tuple[str, ...]) -> tuple[Side, Side]:
    """Both sides on prompts of token ids, so that no template or BOS token comes between."""
    manifest = load_manifest(bundle)
    maker = PromptMaker.load(bundle, manifest.text)
    template = ChatTemplate(maker.template_source or "")
    turns = [[{"role": "user", "content": question}] for question in QUESTIONS]
    asked = [maker.chat(turn, None, {}, manifest.max_context) for turn in turns]
    prompts = [list(maker.chat_ids(prompt, template.answer(prompt.request))) for prompt in asked]
    with Progress(*COLUMNS, console=Console(stderr=True)) as progress:
        task = progress.add_task("Genie", total=None)
        jobs = [(prompt, count) for prompt in prompts]
        genie = genie_greedy(bundle, jobs, scratch, lambda steps: progress.update(task, completed=steps))
    tokenizer = maker.tokenizer
    ends = manifest.text.stop_ids
    texts = [
        b"".join(tokenizer.token_bytes(token) for token in answer if token not in ends).decode(errors="replace")
        for answer in genie.tokens
    ]
    by_rows = steps_by_rows(genie, manifest)
    theirs = Side("Genie, one prompt after the other", texts, sum(by_rows.values()), by_rows)
    return theirs, ask_hexserve(bundle, prompts, clients, count, more)


def steps_by_rows(answers: GenieAnswers, manifest: Manifest) -> dict[int, int]:
    """Genie's steps by the rows of the graph, whose name stands in the manifest."""
    assert manifest.npu is not None
    bodies = [graph for graph in manifest.graphs if graph.kind is not GraphKind.LMHEAD]
    rows = {manifest.npu.chains[graph.name][0][1]: graph.rows for graph in bodies}
    counted: Counter[int] = Counter()
    for name, times in answers.steps.items():
        counted[rows[name] or 0] += times
    return dict(sorted(counted.items()))


def ask_hexserve(bundle: Path, prompts: Sequence[list[int]], clients: int, count: int, more: tuple[str, ...]) -> Side:
    """Start the server on the bundle and let so many clients ask."""
    with serving(bundle, *more) as url:
        model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]

        def ask(prompt: list[int]) -> str:
            body = {"model": model, "prompt": prompt, "max_tokens": count, "temperature": 0}
            answer = httpx.post(f"{url}/v1/completions", json=body, timeout=ANSWER_S)
            answer.raise_for_status()
            return str(answer.json()["choices"][0]["text"])

        before = counters(url)
        with ThreadPoolExecutor(clients) as pool, Progress(console=Console(stderr=True)) as progress:
            texts = list(progress.track(pool.map(ask, prompts), total=len(prompts), description="hexserve"))
        after = counters(url)
    steps, used = (after[name] - before[name] for name in ("steps", "rows_used"))
    return Side(f"hexserve, {clients} clients", texts, steps, {}, used)


def counters(url: str) -> dict[str, int]:
    """The server's own count of its steps and of the rows that were used in them."""
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    found = {}
    for name in ("steps", "rows_used"):
        samples = [line for line in lines if line.startswith(f"hexserve:{name}_total")]
        found[name] = sum(int(float(line.rsplit(" ", 1)[1])) for line in samples)
    return found


def table(genie: Side, ours: Side) -> list[str]:
    """The report."""
    by_rows = ", ".join(f"{times} with {rows} row{'s' * (rows > 1)}" for rows, times in genie.by_rows.items())
    each = ours.rows_used / ours.steps if ours.steps else 0.0
    same = sum(left == right for left, right in zip(genie.texts, ours.texts, strict=True))
    lines = [
        f"{len(genie.texts)} prompts, the same binaries",
        f"{genie.name:<36} {genie.steps:>5} steps ({by_rows})",
        f"{ours.name:<36} {ours.steps:>5} steps ({each:.1f} rows used in each)",
        f"steps saved: {genie.steps / max(1, ours.steps):.1f} times fewer",
        f"same answers: {same} of {len(genie.texts)}",
    ]
    pairs = zip(genie.texts, ours.texts, strict=True)
    return lines + [f"  Genie {left!r}, hexserve {right!r}" for left, right in pairs if left != right]


if __name__ == "__main__":
    sys.exit(main())
