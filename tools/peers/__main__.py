"""hexserve beside llama-server on the same file: `python -m tools.peers --folder build/peers [--gguf FILE]`.

Both servers run all the while and are loaded in turns, never together, by `hexserve bench`: random token ids, streamed,
every answer to its full length, median of --rounds alternating rounds. Prints a table of ratios against the bars, how
near each server is to the file's floats among them. `--with ik,ortgenai,openvino,vllm` has each of these servers
take llama-server's place (tools/peers/baselines.py). Ends with 0 when all bars hold, 1 when one does not or something
failed, 130 after Ctrl-C. Needs an installed `hexserve[dev]`, a C++ compiler the first time, a few GB below --folder.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from rich.console import Console

from server.commands.own_server import OwnServer, ServerFailed, free_port, running_child, serve_command
from tools.idle import ask
from tools.llama_cpp.programs import BuildFailed
from tools.peers.agreement import Floats
from tools.peers.baselines import BASELINES, BaselineLoad, baselines_named
from tools.peers.fidelity import kernels, ratio_of_fidelity
from tools.peers.memory import MemoryWatch
from tools.peers.report import PeerRatio, ratios_of_load, ratios_of_memory, ratios_of_prefix, ratios_of_start, table
from tools.peers.setup import VERSION, PeersFolder
from tools.real_models.fetch import FetchFailed, RealModels, default_folder

ANSWER_TOKENS, PREFIX_TOKENS = 64, 1000
LOADS = ((128, (1, 4, 8, 16)), (1024, (1, 4)))
SLOTS, STARTS = 16, 3
CONTEXT = SLOTS * (1024 + 2 * ANSWER_TOKENS)  # llama-server divides it among its slots
VOCABULARY = 151_000  # below the special tokens
FAILED, INTERRUPTED = 1, 130
IDLE_LOAD = 0.5
PUBLISHED = "qwen-coder"


def main() -> int:
    """Set up, measure, report."""
    options, console = parse(), Console()
    try:
        found, caption = compare(options, console)
    except (BuildFailed, ServerFailed, FetchFailed, OSError, httpx.HTTPError) as error:
        console.print(f"error: {error}", markup=False, style="red")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    console.print(f"{caption}\n\n{table(found)}", markup=False, highlight=False, soft_wrap=True)
    (options.folder / "table.md").write_text(f"{caption}\n\n{table(found)}", encoding="utf-8")
    console.print(f"the table is in {options.folder / 'table.md'}", highlight=False)
    return int(any(each.holds is False for each in found))


def parse() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("build/peers"))
    parser.add_argument("--bundle", default="", help="a bundle of the same file, instead of compiling one")
    parser.add_argument("--gguf", type=Path, help="a GGUF file, instead of Qwen2.5-Coder 0.5B")
    parser.add_argument("--compile", default="", help="options of hexserve compile")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="of each server")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=2, help="of each client in each round")
    parser.add_argument("--with", dest="baselines", type=baselines_named, default=[], help=", ".join(BASELINES))
    parser.add_argument("--starts", action="store_true", help="measure how long a start takes, and nothing else")
    parser.add_argument("--setup-only", action="store_true", help="download and build, measure nothing")
    options = parser.parse_args()
    if options.starts and (options.baselines or options.bundle or options.compile or options.setup_only):
        parser.error("--starts compiles the file itself, beside llama-server: give of the others --gguf and --threads")
    return options


def compare(options: argparse.Namespace, console: Console) -> tuple[list[PeerRatio], str]:
    """Every ratio, and under what they were measured."""
    busy = load_before()  # before our own compiler adds to it
    if busy > IDLE_LOAD:
        console.print(f"the machine is busy (load {busy:.1f}): these figures will say little", style="red")
    folder = PeersFolder(options.folder, console)
    program, gguf = folder.llama.program("llama-server"), options.gguf or RealModels(default_folder()).fetch(PUBLISHED)
    say = partial(console.print, markup=False, highlight=False)
    starts = partial(measured_starts, partial(llama_server, program, gguf, options.threads), gguf, options.threads)
    if options.starts:
        return starts(), caption_of(options, gguf, Path("a fresh cache"), busy)
    bundle = Path(options.bundle) if options.bundle else folder.bundle(gguf, options.compile)
    if options.baselines:
        return beside_baselines(options, folder, gguf, bundle, say), caption_of(options, gguf, bundle, busy)
    if options.setup_only:
        sys.exit(0)
    fidelity = [ratio_of_fidelity(gguf, folder.llama, folder.scratch, say), *starts()]
    with ExitStack() as stack:
        other = stack.enter_context(llama_server(program, gguf, options.threads))
        own = stack.enter_context(hexserve(bundle, options.threads))
        watch = stack.enter_context(MemoryWatch((other.pid, own.pid)))
        found = measure((other, own), options)
    peaks = [watch.peaks[server.pid] for server in (own, other)]
    found += ratios_of_memory(*((peak.rss, peak.pss) for peak in peaks))
    return fidelity + found, f"{caption_of(options, gguf, bundle, busy)} {kernels(folder.llama, gguf)}"


def caption_of(options: argparse.Namespace, gguf: Path, bundle: Path, busy: float) -> str:
    """Under what it was measured."""
    return (
        f"{options.threads} threads on {platform.machine()}, {gguf.name} and {bundle.name} (llama.cpp of {VERSION}), "
        f"median of {options.rounds} alternating rounds, load {busy:.1f} before."
    )


def beside_baselines(
    options: argparse.Namespace, folder: PeersFolder, gguf: Path, bundle: Path, say: Callable[[str], None]
) -> list[PeerRatio]:
    """Each baseline in turn, alone with hexserve: how often its next token is the floats', then its speed."""
    load, found = BaselineLoad(options.threads, SLOTS, CONTEXT), list[PeerRatio]()
    for baseline in options.baselines:
        file, port = folder.quantised(gguf, baseline.kind) if baseline.kind else gguf, free_port()
        command, ready_path = baseline.prepare(folder, file, load, port, say)
        # The baseline rounds its blocks anew: so does hexserve then, else it would keep slower ones.
        ours = folder.bundle(file, options.compile or "--quant int8") if baseline.kind else bundle
        floats = Floats.of(folder, file, options.threads, say)
        if options.setup_only:
            continue
        say(f"{baseline.name}: {baseline.precision}")
        with running_child(command, port, ready_path) as other, hexserve(ours, options.threads) as own:
            measured = floats.agreement(baseline.name, other.address, own.address)
            for prompt_tokens, clients in LOADS:
                name = f"{baseline.name}-{prompt_tokens}"
                figures = bench((other, own), load_words(prompt_tokens, clients), options, name, baseline.takes_ids)
                measured += ratios_of_load(prompt_tokens, figures, baseline.name)
        say(table(measured))
        found += measured
    return found


def load_before() -> float:
    """Processes that wanted to run in the last minute, 0 where the system does not count them."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def llama_server(program: Path, gguf: Path, threads: int) -> Any:
    """It keeps no prompts outside its slots, which would count as its memory."""
    port = free_port()
    command = [str(program), "-m", str(gguf), "-t", str(threads), "-np", str(SLOTS), "-c", str(CONTEXT)]
    return running_child(
        [*command, "--cache-ram", "0", "--no-ui", "--host", "127.0.0.1", "--port", str(port)], port, "health"
    )


def hexserve(source: Path, threads: int, *more: str) -> Any:
    """With its defaults, but room for no more tokens than the other server has."""
    port = free_port()
    options = ["--threads", str(threads), "--kv-slots", str(CONTEXT), "--kv-offload-mb", "0", *more]
    return running_child([*serve_command(str(source), port), *options], port)


def measured_starts(other: Callable[[], Any], gguf: Path, threads: int) -> list[PeerRatio]:
    """hexserve's first one compiles the file; of the others the median."""
    with TemporaryDirectory() as cache:
        own: Callable[[], Any] = partial(hexserve, gguf, threads, "--cache-dir", cache)
        cold_s, *times_s = [start_s(make) for make in [own, *[own, other] * STARTS]]
    return ratios_of_start(cold_s, median(times_s[::2]), median(times_s[1::2]))


def start_s(make: Callable[[], Any]) -> float:
    """Seconds from the command to the end of the first answer."""
    began_s = time.monotonic()
    with make() as server:
        ask(server.address)
        return time.monotonic() - began_s


def measure(servers: tuple[OwnServer, OwnServer], options: argparse.Namespace) -> list[PeerRatio]:
    """All loads, one after the other."""
    found: list[PeerRatio] = []
    for prompt_tokens, clients in LOADS:
        load = load_words(prompt_tokens, clients)
        found += ratios_of_load(prompt_tokens, bench(servers, load, options, f"{prompt_tokens}"))
    prefix = ["--shared-prefix", str(PREFIX_TOKENS), *load_words(16, (1,))]
    return found + ratios_of_prefix(PREFIX_TOKENS, bench(servers, prefix, options, "prefix"))


def load_words(prompt_tokens: int, clients: Sequence[int]) -> list[str]:
    """Options of `hexserve bench`."""
    return ["--prompt-tokens", str(prompt_tokens), "--clients", ",".join(map(str, clients))]


def bench(
    servers: tuple[OwnServer, OwnServer],
    load: list[str],
    options: argparse.Namespace,
    name: str,
    is_ids: bool = True,
) -> dict[str, Any]:
    """Run `hexserve bench` over both; its figures. is_ids: prompts are token ids, else chats of about as many."""
    figures = options.folder / f"figures-{name}.json"
    command = [sys.executable, "-m", "server", "bench", *(server.address for server in servers), *load]
    command += ["--token-ids", str(VOCABULARY)] if is_ids else []
    command += ["--max-tokens", str(ANSWER_TOKENS), "--rounds", str(options.rounds)]
    command += ["--requests-per-client", str(options.requests), "--json", str(figures)]
    if subprocess.run(command, check=False).returncode:
        raise BuildFailed("hexserve bench failed")
    read: dict[str, Any] = json.loads(figures.read_text(encoding="utf-8"))
    return read


if __name__ == "__main__":
    sys.exit(main())
