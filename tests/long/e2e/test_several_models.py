"""One server, three models, real workers: a crash of one touches no other, and loads under traffic lose nothing."""

import asyncio
import contextlib
import random
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import openai
import psutil
import pytest

from engine.demo.location import demo_folder
from tests.live import LiveServer, serving

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="signals and /proc of POSIX"),
    pytest.mark.skipif(not (demo_folder() / "model.safetensors").is_file(), reason="needs the embedded model"),
]
MODELS = ("demo", "demo-diffusion", "second")
SOURCES = ("demo", "demo-diffusion", "second=demo")
TWO_FIT_MB = 2600
CLIENTS = 4
MOVES = 60
WARM = 6  # moves after which memory may not grow any more
GROWTH_MB = 24
PATIENCE_S = 120.0
QUESTION = "What is the capital of France?"


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@contextlib.contextmanager
def three_models(cache: Path, *options: str) -> Iterator[LiveServer]:
    with serving(*SOURCES, *options, cache=cache) as server:
        yield server


def workers(server: LiveServer, part: str) -> list[int]:
    """Process ids of the workers whose command line has `part`."""
    children = psutil.Process(server.process.pid).children()
    found = []
    for child in children:
        with contextlib.suppress(psutil.Error):
            command = " ".join(child.cmdline())
            if "engine.worker" in command and part in command:
                found.append(child.pid)
    return found


def sdk(server: LiveServer, retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=retries, timeout=PATIENCE_S)


async def story(client: openai.AsyncOpenAI, model: str, seen: asyncio.Event | None = None) -> str:
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Tell me a story."}],
        max_tokens=400,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    text = ""
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        if seen is not None and len(text) > 40:
            seen.set()
    return text


async def test_killing_a_worker_under_streams_touches_no_other_model(cache: Path) -> None:
    with three_models(cache) as server:
        async with sdk(server) as client:
            names = ("demo", "demo-diffusion")
            expected = [await story(client, name) for name in names]
            seen = [asyncio.Event() for _ in names]
            telling = [asyncio.create_task(story(client, *each)) for each in zip(names, seen, strict=True)]
            await asyncio.gather(*(each.wait() for each in seen))
            (other,) = workers(server, "demo-diffusion-")
            (victim,) = set(workers(server, "")) - {other}
            psutil.Process(victim).send_signal(signal.SIGKILL)
            assert await asyncio.gather(*telling) == expected
            assert workers(server, "demo-diffusion-") == [other]
            text = httpx.get(f"{server.url}/metrics").text
    assert 'hexserve:worker_restarts_total{model_name="demo"} 1.0' in text
    assert 'hexserve:worker_restarts_total{model_name="demo-diffusion"} 0.0' in text
    assert 'hexserve:model_state{model_name="second",state="unloaded"} 1.0' in text


async def test_ctrl_c_ends_all_workers(cache: Path) -> None:
    with three_models(cache) as server:
        async with sdk(server) as client:
            for name in MODELS[:2]:
                await story(client, name)
        left = psutil.Process(server.process.pid).children(recursive=True)
    assert server.process.returncode == 0
    assert not any(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in left)


async def test_a_signal_while_the_first_use_compiles_ends_the_server(tmp_path: Path) -> None:
    """What compiles is in a thread of the server and in a process of its own: neither keeps it from ending."""
    shutil.copytree(demo_folder(), tmp_path / "models" / "checkpoint")
    with serving("--models-dir", str(tmp_path / "models"), cache=tmp_path / "cache") as server:
        async with sdk(server) as client:
            asking = asyncio.create_task(story(client, "checkpoint"))
            while not (compilers := psutil.Process(server.process.pid).children()):
                await asyncio.sleep(0)
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(openai.APIStatusError) as refusal:
                await asking
        assert refusal.value.status_code == 503
        assert server.process.wait(PATIENCE_S) == 0
        psutil.wait_procs(compilers, PATIENCE_S)
        assert not any(each.is_running() for each in compilers)
    assert [path.name for path in (tmp_path / "cache").iterdir() if "partial" in path.name] == []


@dataclass
class Sample:
    """What the server process holds, in MiB and counts."""

    memory: float
    files: int
    threads: int
    children: int


@dataclass
class Traffic:
    """Clients that ask right through loads and unloads."""

    server: LiveServer
    draw: random.Random
    expected: dict[str, str] = field(default_factory=dict)
    answers: int = 0
    busy: int = 0
    is_over: bool = False

    async def ask(self, client: openai.AsyncOpenAI, name: str) -> str:
        answer = await client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": QUESTION}], temperature=0
        )
        return answer.choices[0].message.content or ""

    async def keep_asking(self, client: openai.AsyncOpenAI) -> None:
        """Every request is answered as it should be, or told to come back."""
        while not self.is_over:
            name = self.draw.choice(MODELS)
            try:
                assert await self.ask(client, name) == self.expected[name]
                self.answers += 1
            except openai.APIStatusError as error:
                assert error.status_code == 503 and error.response.headers["retry-after"]
                self.busy += 1
            await asyncio.sleep(self.draw.random() / 50)

    async def move(self, client: httpx.AsyncClient) -> int:
        """Load or unload a random model; how many moves there have been."""
        path, name = self.draw.choice(("load", "unload", "unload")), self.draw.choice(MODELS)
        answer = await client.post(f"/models/{path}", json={"model": name})
        assert answer.status_code in (200, 409, 503), answer.text
        metrics = (await client.get("/metrics")).text.splitlines()
        counted = ("hexserve:model_loads_total{", "hexserve:model_unloads_total{")
        return sum(int(float(line.rsplit(" ", 1)[1])) for line in metrics if line.startswith(counted))

    def sample(self) -> Sample:
        process = psutil.Process(self.server.process.pid)
        with process.oneshot():
            memory = process.memory_info().rss / 1024**2
            return Sample(memory, process.num_fds(), process.num_threads(), len(process.children()))


async def test_random_loads_and_unloads_under_traffic_lose_nothing(cache: Path) -> None:
    with three_models(cache, "--models-memory-mb", str(TWO_FIT_MB)) as server:
        traffic = Traffic(server, random.Random(12))
        async with sdk(server) as client, httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as control:
            for name in MODELS:
                traffic.expected[name] = await traffic.ask(client, name)
                assert "Paris" in traffic.expected[name]
            clients = [asyncio.create_task(traffic.keep_asking(client)) for _ in range(CLIENTS)]
            samples: list[Sample] = []
            while (done := await traffic.move(control)) < MOVES and not any(each.done() for each in clients):
                if done >= WARM:
                    samples.append(traffic.sample())
            traffic.is_over = True
            await asyncio.gather(*clients)
            for name in MODELS:
                assert await traffic.ask(client, name) == traffic.expected[name]
                assert (await control.post("/models/unload", json={"model": name})).json()["success"]
        assert traffic.answers > MOVES
        assert workers(server, "") == []
        end = traffic.sample()
    print(f"{MOVES} moves, {traffic.answers} answers, {traffic.busy} told to come back; {samples[0]} ... {end}")
    assert end.memory - samples[0].memory < GROWTH_MB
    assert (end.files, end.children) <= (samples[0].files, samples[0].children)
    assert end.threads <= max(sample.threads for sample in samples)
