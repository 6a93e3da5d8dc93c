"""`python -m tools.simulate --both`: NPU and CPU together, by the server's placement, beside each of them alone.

Each device runs steps of its own streams and of one chunk of prompts; a stream that moves takes `MOVE_MS` and its
tokens' share to get there. Times are published ones, of Qwen3-4B; how a CPU's step grows with its rows is ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from engine.client.placement import MOVE_MS, MOVE_TOKEN_MS, DeviceCosts, DeviceLoad, reader, writer
from engine.config import BLOCK_SIZE
from server.commands.tables import table
from tools.simulate.clock import Run, SimulatedAnswer
from tools.simulate.drawing import drawing
from tools.simulate.figures import Figures, figures
from tools.simulate.load import SimulatedLoad
from tools.simulate.lone import Processors, both_processors
from tools.simulate.published import ROWS, hub_figures

BOTH_PROMPTS = (128, 512, 2000, 4000)
HEADINGS = ("tokens in", "clients", "NPU tok/s", "CPU tok/s", "both tok/s", "of the better", "first token s")
MODEL = "qwen3_4b_instruct_2507"
# Times of a CPU's step over that of one row (int4, 0.6B shape, two cores); a published 128 rows are 19.7 times one.
CPU_GROWTH = ((1, 1.0), (4, 1.57), (8, 2.8), (16, 4.9), (64, 10.0))


@dataclass(slots=True)
class _Stream:
    """One request. ready_s: when it has arrived where it is."""

    answer: SimulatedAnswer
    at: int
    ready_s: float
    read: int = 0

    @property
    def unread(self) -> int:
        return self.answer.job.prompt - self.read

    @property
    def context(self) -> int:
        return self.read + len(self.answer.tokens)


def device_costs(each: Sequence[Processors]) -> list[DeviceCosts]:
    """NPU and CPU, from rates at one context or several."""
    npu: list[tuple[int, int, float]] = []
    cpu: list[tuple[int, int, float]] = []
    for one in each:
        row, chunk = 1000.0 / one.npu.decode, 1000.0 * ROWS / one.npu.prefill
        npu += [(rows, one.context, row + (chunk - row) * (rows - 1) / (ROWS - 1)) for rows in (1, 32, ROWS)]
        row = 1000.0 / one.cpu.decode
        cpu += [(rows, one.context, row * growth) for rows, growth in CPU_GROWTH]
        cpu.append((ROWS, one.context, 1000.0 * ROWS / one.cpu.prefill))
    return [DeviceCosts(tuple(npu), False), DeviceCosts(tuple(cpu), True)]


class _Play:
    """Clients that send one request after the other, over one device or two."""

    def __init__(self, costs: Sequence[DeviceCosts], load: SimulatedLoad) -> None:
        self._costs, self._free_s = costs, [0.0] * len(costs)
        self._load = load
        self._streams: list[_Stream] = []
        self._run = Run()

    def run(self) -> Run:
        """To the last token."""
        for client in range(len(self._load.starts_s)):
            self._send(client, 0, 0.0)
        while self._streams:
            index = min(range(len(self._costs)), key=self._next_start)
            self._step(index, self._next_start(index))
        self._run.seconds = max(answer.times_s[-1] for answer in self._run.answers.values())
        return self._run

    def _send(self, client: int, turn: int, now: float) -> None:
        if turn < self._load.requests:
            job = self._load.job(client, turn)
            at = reader(job.prompt, self._loads()) if len(self._costs) > 1 else 0
            self._streams.append(_Stream(SimulatedAnswer(job, now), at, now))

    def _own(self, index: int) -> list[_Stream]:
        return [stream for stream in self._streams if stream.at == index]

    def _next_start(self, index: int) -> float:
        arrivals = [stream.ready_s for stream in self._own(index)]
        return max(self._free_s[index], min(arrivals)) if arrivals else float("inf")

    def _loads(self) -> list[DeviceLoad]:
        loads = []
        for index, costs in enumerate(self._costs):
            writing = [stream for stream in self._own(index) if not stream.unread]
            unread = sum(stream.unread for stream in self._own(index))
            mean = sum(stream.context for stream in writing) // len(writing) if writing else 0
            loads.append(DeviceLoad(costs, len(writing), mean, unread))
        return loads

    def _step(self, index: int, start: float) -> None:
        here = [stream for stream in self._own(index) if stream.ready_s <= start]
        writing = [stream for stream in here if not stream.unread]
        room, chunks = ROWS - len(writing), []
        for stream in (stream for stream in here if stream.unread):
            chunk = min(room, stream.unread)
            if chunk:
                chunks.append((stream, chunk))
                room -= chunk
        rows = len(writing) + sum(chunk for _, chunk in chunks)
        context = sum(stream.context for stream in here) // len(here)
        end = self._free_s[index] = start + self._costs[index].step_ms(rows, context) / 1000.0
        self._run.steps += 1
        self._run.rows_used += rows
        for stream, chunk in chunks:
            stream.read += chunk
        for stream in here:
            if not stream.unread:
                self._token(stream, index, end)

    def _token(self, stream: _Stream, index: int, now: float) -> None:
        answer, job = stream.answer, stream.answer.job
        answer.tokens.append(0)
        answer.times_s.append(now)
        answer.steps.append(self._run.steps)
        left = job.output - len(answer.tokens)
        if not left:
            self._streams.remove(stream)
            self._run.answers[len(self._run.answers)] = answer
            self._send(job.client, job.number % self._load.requests + 1, now)
        elif len(self._costs) > 1 and (len(answer.tokens) == 1 or stream.context % BLOCK_SIZE == 0):
            there = writer(index, stream.context, left, self._loads())
            if there != index:
                stream.at = there
                stream.ready_s = now + (MOVE_MS + MOVE_TOKEN_MS * stream.context) / 1000.0


def play(costs: Sequence[DeviceCosts], load: SimulatedLoad) -> list[Figures]:
    """NPU and CPU alone, then both; rates over the better of the two alone."""
    clients = len(load.starts_s)
    alone = [figures(clients, name, _Play([costs[at]], load).run(), None) for at, name in enumerate(("NPU", "CPU"))]
    best = max(alone, key=lambda each: each.tokens_per_second)
    return [*alone, figures(clients, "both", _Play(costs, load).run(), best)]


def run_both(clients: Sequence[int], requests: int, prompts: Sequence[int], output: int, svg_file: Path | None) -> int:
    """Print, and draw where it is asked for; the exit code."""
    published = [each for each in both_processors(hub_figures()) if each.model == MODEL]
    costs = device_costs(published)
    rows: list[tuple[str, ...]] = []
    panels: list[tuple[str, str, Sequence[Figures]]] = []
    source = f"AI Hub ({hub_figures().source}): QAIRT w4a16 on the NPU, llama.cpp Q4_0 on the CPU"
    for prompt in prompts:
        found: list[Figures] = []
        for count in clients:
            three = play(costs, SimulatedLoad((0.0,) * count, requests, prompt, output))
            found += three
            rates = [f"{each.tokens_per_second:.1f}" for each in three]
            wait = f"{three[-1].first_token_mean_s:.1f}"
            rows.append((str(prompt), str(count), *rates, f"{three[-1].of_serial:.2f}", wait))
        panels.append((f"{MODEL}, {prompt} tokens in", source, found))
    console = Console()
    console.print(table(HEADINGS, rows, f"{MODEL}, {output} tokens out"))
    console.print(f"Step times: {source}.", highlight=False, soft_wrap=True)
    if svg_file is not None:
        svg_file.write_text(drawing(panels), encoding="utf-8")
    return 0
