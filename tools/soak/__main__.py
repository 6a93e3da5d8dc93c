"""Hours of mixed traffic in minutes: does anything get lost, hang or leak?

    python -m tools.soak [--requests 2000] [--minutes 20] [--clients 24] [--kill-every 200] [--seed 1]

Starts `hexserve serve` on a loopback port, sends a seeded mixture of requests (streams, clients that leave, structured
output, tools, several choices, responses, log-probabilities, bodies that are too large or wrong) and ends the worker
with SIGKILL now and then. Every answer is checked; memory, open files, threads and columns are sampled all the while.
Ends after --requests or --minutes, whatever comes first, with a verdict: exit code 0 or 1.
Needs an installed `hexserve[bench,compile]`, and Linux for the kills.
"""

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx
import psutil
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from server.commands.exit_codes import FAILED
from server.commands.own_server import ServerFailed, free_port, running_child, serve_command
from tools.soak.requests import KINDS, Asker, Lost
from tools.soak.verdict import ProcessSample, verdict

END_S, IDLE_S, SAMPLE_S = 60.0, 60.0, 0.5


@dataclass
class SoakRecord:
    """What happened: answers by kind, what was lost, samples, and when the worker was killed (seconds)."""

    began: float = field(default_factory=time.monotonic)
    done: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    samples: list[ProcessSample] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began


def main() -> int:
    """0 when nothing was lost and nothing grew."""
    options = parse()
    console = Console()
    port = free_port()
    command = [*serve_command(options.bundle, port), "--access-log", "off", "--body-limit-bytes", "262144"]
    try:
        with running_child(command, port) as child:
            server = psutil.Process(child.pid)
            record = asyncio.run(soak(options, server, child.address, console))
            record.lost += bad_end(server)
    except ServerFailed as error:
        console.print(f"error: {error}", markup=False, style="red")
        return FAILED
    return report(record, console)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", nargs="?", default="demo", help="what to serve")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=20.0, help="the longest run")
    parser.add_argument("--clients", type=int, default=24, help="requests at once")
    parser.add_argument("--kill-every", type=int, default=200, help="requests between kills of the worker; 0 = none")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def bad_end(server: psutil.Process) -> list[str]:
    """Ask the server to end; a sentence where it does not, or not with 0."""
    server.terminate()
    try:
        code = server.wait(END_S)
    except psutil.TimeoutExpired:
        return [f"the server had not ended after {END_S:g} s"]
    return [f"the server ended with exit code {code}"] if code else []


async def soak(options: argparse.Namespace, server: psutil.Process, url: str, console: Console) -> SoakRecord:
    """Send everything, then wait until the server is idle and take a last sample."""
    limits = httpx.Limits(max_connections=options.clients + 4)
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits, trust_env=False) as client:
        asker = Asker(client)
        await asker.learn()
        record = SoakRecord()
        sampling = asyncio.create_task(sample_for_ever(record, client, server))
        try:
            await asyncio.wait_for(send_all(options, record, asker, server, console), 60 * options.minutes)
        except TimeoutError:
            console.print(f"{options.minutes:g} minutes are over")
        await settle(record, client)
        sampling.cancel()
        record.samples.append(await sample(record, client, server))
    return record


async def send_all(
    options: argparse.Namespace, record: SoakRecord, asker: Asker, server: psutil.Process, console: Console
) -> None:
    """The mixture, `clients` at once, in the order of the seed."""
    drawn = random.Random(options.seed)
    names, weights = list(KINDS), [KINDS[name].weight for name in KINDS]
    todo = iter([(number, drawn.choices(names, weights)[0]) for number in range(options.requests)])
    columns = (TextColumn("soak"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=options.requests)

        async def one_client() -> None:
            for number, name in todo:
                if options.kill_every and number and number % options.kill_every == 0:
                    kill_worker(record, server)
                try:
                    await KINDS[name].ask(asker, random.Random(f"{options.seed}:{number}"))
                    record.done[name] += 1
                except (Lost, httpx.HTTPError, KeyError, ValueError) as error:
                    record.lost.append(f"request {number} ({name}): {type(error).__name__}: {error}")
                progress.advance(bar)

        await asyncio.gather(*(one_client() for _ in range(options.clients)))


def kill_worker(record: SoakRecord, server: psutil.Process) -> None:
    """End the worker as a crash in a driver would."""
    for child in server.children():
        if "engine.worker" in " ".join(child.cmdline()):
            child.kill()
            record.kills.append(record.now())


async def settle(record: SoakRecord, client: httpx.AsyncClient) -> None:
    """Until nothing runs; a request that never ends is a loss."""
    deadline = time.monotonic() + IDLE_S
    while time.monotonic() < deadline:
        gauges = await read_gauges(client)
        if not gauges["vllm:num_requests_running"] and not gauges["vllm:num_requests_waiting"]:
            return
        await asyncio.sleep(SAMPLE_S)
    record.lost.append(f"requests still ran {IDLE_S:g} s after the last client left")


async def sample_for_ever(record: SoakRecord, client: httpx.AsyncClient, server: psutil.Process) -> None:
    """A sample now and then, until cancelled."""
    while True:
        record.samples.append(await sample(record, client, server))
        await asyncio.sleep(SAMPLE_S)


async def sample(record: SoakRecord, client: httpx.AsyncClient, server: psutil.Process) -> ProcessSample:
    """What the server holds now: of its own process and of all its children together."""
    gauges = await read_gauges(client)
    memory = files = threads = processes = 0
    for process in (server, *server.children(recursive=True)):
        try:
            memory += process.memory_info().rss
            files += process.num_fds()
            threads += process.num_threads()
            processes += 1
        except psutil.NoSuchProcess:
            continue
    return ProcessSample(record.now(), memory, files, threads, processes, int(gauges["hexserve:kv_slots_used"]))


async def read_gauges(client: httpx.AsyncClient) -> Counter[str]:
    """The sums of all samples of /metrics, by name; absent ones count 0."""
    found: Counter[str] = Counter()
    for line in (await client.get("/metrics")).text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name.partition("{")[0]] += float(value)  # type: ignore[assignment]
    return found


def report(record: SoakRecord, console: Console) -> int:
    """Print the verdict; the exit code."""
    console.print(", ".join(f"{count} {name}" for name, count in sorted(record.done.items())))
    console.print(f"{len(record.kills)} kills of the worker, {record.now():.0f} s")
    findings = [*record.lost[:20], *verdict(record.samples)]
    for finding in findings:
        console.print(f"FAIL {finding}", style="red", markup=False)
    first, last = record.samples[0], record.samples[-1]
    console.print(
        f"memory {first.memory / 1e6:.0f} -> {last.memory / 1e6:.0f} MB, files {first.files} -> {last.files}, "
        f"threads {first.threads} -> {last.threads}, processes {first.processes} -> {last.processes}, "
        f"columns {first.columns} -> {last.columns}"
    )
    sent = sum(record.done.values()) + len(record.lost)
    console.print(f"{'FAILED' if findings else 'passed'}: {sent} requests, {len(record.lost)} lost")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
