"""Signals: Ctrl-C ends everything at once, SIGTERM lets streams finish; neither leaves a process behind."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI

from tests.live import serving


def gone(pid: int) -> bool:
    """True when the process does not exist or is only waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


async def long_stream(url: str, started: asyncio.Event) -> tuple[int, str | None]:
    message = {"role": "user", "content": "Tell me a long story."}
    count, finish = 0, None
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        chunks = await client.chat.completions.create(
            model="demo",
            messages=[message],
            max_tokens=60,
            stream=True,  # type: ignore[list-item]
        )
        async for chunk in chunks:
            count += 1
            finish = chunk.choices[0].finish_reason or finish
            started.set()
    return count, finish


async def test_sigterm_drains_first() -> None:
    with serving("--bundle", "demo") as server:
        worker = server.worker_pid()
        started = asyncio.Event()
        running = asyncio.create_task(long_stream(server.url, started))
        await started.wait()
        server.process.send_signal(signal.SIGTERM)
        _, finish = await running
        assert finish in ("stop", "length")
        assert await asyncio.to_thread(server.process.wait, 20) == 0
        assert gone(worker)


@pytest.mark.parametrize("loses", [False, True])
async def test_sigterm_drains_two_devices_first(loses: bool) -> None:
    """Also where one of them is lost meanwhile."""
    with serving("--bundle", "demo", "--devices", "demo") as server:
        worker = server.worker_pid()
        started = [asyncio.Event() for _ in range(6)]
        running = [asyncio.create_task(long_stream(server.url, event)) for event in started]
        await asyncio.gather(*(event.wait() for event in started))
        server.process.send_signal(signal.SIGTERM)
        if loses:
            os.kill(worker, signal.SIGKILL)
        assert {finish for _, finish in await asyncio.gather(*running)} <= {"stop", "length"}
        assert await asyncio.to_thread(server.process.wait, 20) == 0
        assert gone(worker)


async def test_ctrl_c_ends_everything() -> None:
    with serving("--bundle", "demo") as server:
        worker = server.worker_pid()
        started = asyncio.Event()
        running = asyncio.create_task(long_stream(server.url, started))
        await started.wait()
        server.process.send_signal(signal.SIGINT)
        await asyncio.to_thread(server.process.wait, 20)
        assert gone(worker)
        await asyncio.wait([running])
        running.exception()


@pytest.mark.parametrize("signal_name", ["SIGTERM", "SIGINT"])
async def test_a_stopped_worker_does_not_keep_the_server_from_ending(signal_name: str) -> None:
    with serving("--bundle", "demo", "--drain-s", "1") as server:
        worker = server.worker_pid()
        started = asyncio.Event()
        running = asyncio.create_task(long_stream(server.url, started))
        await started.wait()
        os.kill(worker, signal.SIGSTOP)
        server.process.send_signal(signal.Signals[signal_name])
        await asyncio.to_thread(server.process.wait, 20)
        assert gone(worker)
        await asyncio.wait([running])
        running.exception()


async def test_worker_ends_with_a_killed_server() -> None:
    with serving("--bundle", "demo") as server:
        worker = os.pidfd_open(server.worker_pid())
        server.process.kill()
        server.process.wait(10)
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        loop.add_reader(worker, ended.set_result, None)
        try:
            await asyncio.wait_for(ended, 20)
        finally:
            loop.remove_reader(worker)
            os.close(worker)


def test_port_in_use_is_one_sentence() -> None:
    with serving("--bundle", "demo") as server:
        port = server.url.rsplit(":", 1)[1]
        second = subprocess.run(
            [sys.executable, "-m", "server", "serve", "--bundle", "demo", "--port", port],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert second.returncode != 0
        assert port in second.stderr and "Traceback" not in second.stderr
        assert httpx.get(f"{server.url}/health/live").status_code == 200


@pytest.mark.parametrize("bundle", ["does-not-exist", "/"])
def test_unknown_bundle_is_one_sentence(bundle: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "server", "serve", "--bundle", bundle, "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode != 0
    assert "Traceback" not in result.stderr and bundle in result.stderr
