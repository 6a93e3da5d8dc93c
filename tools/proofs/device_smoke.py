"""One command for a Snapdragon laptop: does everything work on the NPU, and how fast is it?

    python -m tools.proofs.device_smoke [BUNDLE] [--report FILE]

Without BUNDLE the embedded demo model is compiled for this chip first. Prints pass or fail for each step and output
tokens per second with 1, 4, 8 and 16 clients. Needs an installed `hexserve[qnn,compile]`. On x86-64 every step runs
in the HTP emulator, whose speed means nothing: use `--clients 1,2` there.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from server.commands.own_server import ServerFailed, free_port, running_child, serve_command

QUESTION, WORD = "What is the capital of France?", "Paris"
ANSWER_S = 600.0
ARM64 = ("arm64", "aarch64")


@dataclass
class Steps:
    """What was tried, in order. A failed step does not stop those that do not need it."""

    done: list[dict[str, Any]] = field(default_factory=list)

    def run(self, name: str, action: Callable[[], str]) -> bool:
        """Run one step and print how it ended."""
        start = time.perf_counter()
        try:
            text, good = action(), True
        except (OSError, RuntimeError, httpx.HTTPError, KeyError, ValueError) as error:
            text, good = f"{type(error).__name__}: {error}", False
        seconds = time.perf_counter() - start
        self.done.append({"step": name, "pass": good, "text": text, "seconds": round(seconds, 2)})
        print(f"{'pass' if good else 'FAIL'}  {name:<22} {seconds:7.1f} s  {text}", flush=True)
        return good


def main() -> int:
    """0 when every step passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bundle", nargs="?", type=Path, help="an NPU bundle; none = compile the demo model")
    parser.add_argument("--report", type=Path, help="write what was found to this file as well")
    parser.add_argument("--target", default="x-elite", help="chip to compile the demo for")
    parser.add_argument("--clients", default="1,4,8,16")
    parser.add_argument("--max-tokens", type=int, default=64)
    options = parser.parse_args()
    steps = Steps()
    with tempfile.TemporaryDirectory(prefix="hexserve-smoke-") as name:
        steps.run("doctor", lambda: hexserve("doctor").splitlines()[-1])
        bundle = options.bundle or Path(name) / "demo"
        if options.bundle is not None or steps.run("compile", lambda: compile_demo(options.target, bundle)):
            serve_and_ask(steps, bundle, [int(count) for count in options.clients.split(",")], options.max_tokens)
    if options.report:
        facts = {"machine": platform.machine(), "system": platform.platform(), "steps": steps.done}
        options.report.write_text(json.dumps(facts, indent=1), encoding="utf-8")
    failed = [step["step"] for step in steps.done if not step["pass"]]
    print(f"failed: {', '.join(failed)}" if failed else "everything passed")
    return int(bool(failed))


def hexserve(*arguments: str) -> str:
    """Run a command of the package; RuntimeError with its last line when it fails."""
    done = subprocess.run([sys.executable, "-m", "server", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise RuntimeError(lines[-1] if lines else f"exit code {done.returncode}")
    return done.stdout.strip()


def compile_demo(target: str, output: Path) -> str:
    """The demo for this chip; the emulator cannot load shared weights, a device should."""
    layout = () if platform.machine().lower() in ARM64 else ("--one-graph-per-binary",)
    hexserve("compile", "demo", "--target", target, "--rows", "1,32", "--context", "512", *layout, "-o", str(output))
    return f"{sum(path.stat().st_size for path in output.iterdir()) / 1e6:.1f} MB"


def serve_and_ask(steps: Steps, bundle: Path, clients: list[int], max_tokens: int) -> None:
    """Start the server on a bundle and use it."""
    try:
        with serving(bundle) as url:
            steps.run("load", lambda: device_of(url))
            steps.run("one answer", lambda: ask(url, 32)[1])
            steps.run("answer is right", lambda: check_answer(url))
            for count in clients:
                steps.run(f"{count} clients", partial(measure, url, count, max_tokens))
            steps.run("answer after load", lambda: check_answer(url))
    except ServerFailed as error:
        reason = str(error)
        steps.run("load", lambda: fail(reason))


def fail(reason: str) -> str:
    """A step that has failed already."""
    raise RuntimeError(reason)


@contextmanager
def serving(bundle: Path, *options: str) -> Iterator[str]:
    """`hexserve serve` until the block ends; its address. ServerFailed with its last words when it does not start."""
    port = free_port()
    with running_child([*serve_command(str(bundle), port), "--access-log", "off", *options], port) as child:
        yield child.address


def device_of(url: str) -> str:
    """What computes; an ARM64 machine that does not use its NPU has failed."""
    meta = httpx.get(f"{url}/v1/models").json()["data"][0]["meta"]
    device = str(meta["device"])
    if platform.machine().lower() in ARM64 and device != "NPU":
        raise RuntimeError(f"it runs on the {device}, not on the NPU")
    return f"{device}, {meta['quant']}, {', '.join(meta['variants'])}"


def ask(url: str, max_tokens: int, question: str = QUESTION) -> tuple[int, str]:
    """Tokens of an answer, and its text."""
    model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
    body = {"model": model, "max_tokens": max_tokens, "temperature": 0}
    messages = [{"role": "user", "content": question}]
    answer = httpx.post(f"{url}/v1/chat/completions", json={**body, "messages": messages}, timeout=ANSWER_S)
    answer.raise_for_status()
    content = answer.json()
    return int(content["usage"]["completion_tokens"]), str(content["choices"][0]["message"]["content"]).strip()


def check_answer(url: str) -> str:
    """The answer must name the capital: a model of any size knows it."""
    text = ask(url, 64)[1]
    if WORD not in text:
        raise RuntimeError(f"{QUESTION!r} was answered {text!r}")
    return text


def measure(url: str, clients: int, max_tokens: int) -> str:
    """Output tokens per second over all clients, two answers each."""
    questions = [f"Tell me a story about the number {index}." for index in range(2 * clients)]
    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        tokens = sum(count for count, _ in pool.map(lambda text: ask(url, max_tokens, text), questions))
    seconds = time.perf_counter() - start
    return f"{tokens / seconds:.1f} tokens/s ({tokens} tokens)"


if __name__ == "__main__":
    sys.exit(main())
