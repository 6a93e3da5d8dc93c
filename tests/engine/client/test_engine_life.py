"""The engine through loading, killed workers, poisonous requests, draining and closing."""

import asyncio
import contextlib
import gc
import json
import os
import sys
import threading
import weakref
from pathlib import Path
from random import Random

import msgspec
import pytest

from engine.bundle.manifest import TextSpec, load_manifest, save_manifest
from engine.client.engine import Engine, EngineState
from engine.client.supervisor import Supervisor
from engine.client.worker_process import worker_command
from engine.config import EngineConfig
from engine.errors import (
    BundleError,
    Busy,
    EngineFailure,
    HexserveError,
    InvalidRequest,
    WorkerDied,
)
from engine.messages import Ready
from engine.request import Request
from engine.text.prompt import PromptMaker
from tests.engine.client.client_stage import (
    GUARD_S,
    KILL,
    SCRIPT,
    Stage,
    expected,
    read,
    request,
    stage,
    text_of,
)
from tests.engine.client.scripted_worker import expected_text
from tests.engine.tiny_bundle import write_bundle

__all__ = ["stage"]


async def test_thirty_two_streams_survive_a_killed_worker(stage: Stage) -> None:
    engine = await stage.engine()
    requests = [request(f"r{i}", f"prompt {i} hold@{1 + i % 7}", tokens=50) for i in range(32)]
    streams = [engine.submit(asked) for asked in requests]
    beginnings = [[(await anext(stream)).text for _ in range(1 + i % 7)] for i, stream in enumerate(streams)]
    pid = engine.worker_pid()
    assert pid is not None
    os.kill(pid, KILL)
    rests = await asyncio.gather(*(text_of(stream) for stream in streams))
    texts = ["".join(beginning) + rest for beginning, rest in zip(beginnings, rests, strict=True)]
    assert texts == [expected(asked) for asked in requests]
    assert (engine.restarts, engine.unfinished) == (1, 0)
    assert engine.worker_pid() not in (None, pid)
    assert len(engine.finished) == 32
    assert engine.finished[-1].generate_ms != 100.0  # the second worker's own figure covers its part only


async def test_a_poisonous_request_raises_and_its_neighbours_do_not_notice(stage: Stage) -> None:
    engine = await stage.engine()
    neighbours = [request(f"r{i}", f"prompt {i}", tokens=60) for i in range(4)]
    poison = engine.submit(request("poison", "die@3"))
    streams = [engine.submit(asked) for asked in neighbours]
    texts = await asyncio.gather(*(text_of(stream) for stream in streams))
    assert texts == [expected(asked) for asked in neighbours]
    given_out = []
    with pytest.raises(WorkerDied):
        async for delta in poison:
            given_out.append(delta.text)
    assert "".join(given_out) == expected_text(request("poison", "die@3").prompt_ids, 3)
    with pytest.raises(StopAsyncIteration):
        await anext(poison)


async def test_failures_are_raised_by_kind(stage: Stage) -> None:
    engine = await stage.engine()
    for text, kind in (("fail@0", EngineFailure), ("invalid@2", InvalidRequest)):
        with pytest.raises(kind, match="told to"):
            await read(engine.submit(request("a", text)))


async def test_draining_lets_requests_finish_and_takes_no_new_ones(stage: Stage) -> None:
    engine = await stage.engine()
    streams = [engine.submit(request(f"r{i}", tokens=300)) for i in range(4)]
    closing = asyncio.create_task(engine.close(drain_s=GUARD_S))
    await asyncio.sleep(0)
    assert engine.state is EngineState.DRAINING
    with pytest.raises(Busy, match="shutting down"):
        engine.submit(request("late"))
    texts = await asyncio.gather(*(text_of(stream) for stream in streams))
    assert set(texts) == {expected(request("r", tokens=300))}
    await closing
    assert (engine.state, engine.worker_pid()) == (EngineState.STOPPED, None)


async def test_draining_has_an_end(stage: Stage) -> None:
    engine = await stage.engine()
    stream = engine.submit(request("a", "hold@1"))
    await anext(stream)
    await engine.close(drain_s=0.01)
    with pytest.raises(EngineFailure, match="shutting down"):
        await anext(stream)
    with pytest.raises(Busy):
        await engine.text_prompt("x")


async def test_before_it_is_ready_it_says_so(stage: Stage) -> None:
    script = json.dumps({"folder": str(stage.folder), "starts": ["hang"]})
    engine = Engine(EngineConfig(str(stage.folder)), command=[sys.executable, str(SCRIPT), script])
    assert engine.state is EngineState.LOADING
    starting = asyncio.create_task(engine.start())
    while engine.worker_pid() is None:
        await asyncio.sleep(0)
    for attempt in (lambda: engine.info, lambda: engine.submit(request("a")), lambda: engine.check_ids([1], "prompt")):
        with pytest.raises(Busy, match="loading"):
            attempt()
    await engine.close()
    with pytest.raises(EngineFailure):
        await starting
    assert engine.state is EngineState.STOPPED


async def test_the_worker_loads_beside_the_text_side(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on, load = threading.Event(), PromptMaker.load

    def late(folder: Path, spec: TextSpec, placeholder: str) -> PromptMaker:
        may_go_on.wait()
        return load(folder, spec, placeholder)

    monkeypatch.setattr("engine.client.engine.PromptMaker.load", late)
    script = json.dumps({"folder": str(stage.folder), "starts": ["ready"]})
    engine = Engine(EngineConfig(str(stage.folder)), command=[sys.executable, str(SCRIPT), script])
    worker_ready, report = asyncio.Event(), Supervisor._on_ready

    def on_ready(supervisor: Supervisor, ready: Ready) -> None:
        report(supervisor, ready)
        worker_ready.set()

    monkeypatch.setattr(Supervisor, "_on_ready", on_ready)
    stage.engines.append(engine)
    starting = asyncio.create_task(engine.start())
    try:
        async with asyncio.timeout(GUARD_S / 4):
            await worker_ready.wait()
            assert engine.state is EngineState.LOADING
            with pytest.raises(Busy, match="loading"):
                engine.submit(request("a"))
    finally:
        may_go_on.set()
        await starting
    assert engine.state is EngineState.READY


async def test_a_dead_engine_says_why(stage: Stage) -> None:
    engine = await stage.engine("ready", "fatal")
    stream = engine.submit(request("a", "die@1"))
    with pytest.raises(EngineFailure, match="the bundle is broken"):
        await read(stream)
    assert engine.state is EngineState.DEAD
    with pytest.raises(EngineFailure, match="the bundle is broken"):
        engine.submit(request("b"))


async def test_a_bundle_that_cannot_be_served(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="not a bundle"):
        await Engine(EngineConfig(str(tmp_path / "nowhere"))).start()
    write_bundle(tmp_path)
    size = (tmp_path / "tokenizer.json").stat().st_size
    (tmp_path / "tokenizer.json").write_bytes(b"x" * size)
    engine = Engine(EngineConfig(str(tmp_path)))
    with pytest.raises(HexserveError, match="tokenizer"):
        await engine.start()
    assert engine.state is EngineState.STOPPED


def test_the_worker_is_started_as_a_module_with_its_settings() -> None:
    executable, *rest = worker_command(EngineConfig("folder", threads=3), "qwen3")
    assert executable == sys.executable
    assert rest[-4:-2] == ["-m", "engine.worker"]
    assert json.loads(rest[-2])["threads"] == 3
    assert rest[-1] == "qwen3"


def test_a_folder_called_engine_is_not_mistaken_for_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert "-P" in worker_command(EngineConfig("folder"))
    monkeypatch.chdir(Path(__file__).parents[3])
    assert "-P" in worker_command(EngineConfig("folder"))


async def test_a_tokenizer_with_more_ids_than_the_model_is_told_at_the_start(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.engine()
    assert caplog.messages == []
    manifest = load_manifest(stage.folder)
    model = msgspec.structs.replace(manifest.model, vocab=261)  # the last of the tokenizer's 262 ids is <think>
    save_manifest(stage.folder, msgspec.structs.replace(manifest, model=model))
    engine = await stage.engine()
    (told,) = caplog.messages
    assert told.startswith("the tokenizer has ids up to 261, the model only up to 260")
    assert await engine.text_prompt("hello")
    with pytest.raises(InvalidRequest, match=r"'prompt\[1\]' is 261, not a token id of this model"):
        await engine.text_prompt("a<think>")


async def test_a_closed_engine_gives_its_tokenizer_back_before_any_garbage_is_collected(stage: Stage) -> None:
    """An engine is part of a circle, and a tokenizer of 150,000 tokens takes a hundred megabytes."""
    engine = await stage.engine()
    assert engine._prompts is not None
    text_side = weakref.ref(engine._prompts)
    gc.disable()
    try:
        await engine.close()
        assert text_side() is None
    finally:
        gc.enable()
    with pytest.raises(Busy, match="shutting down"):
        await engine.text_prompt("hello")


async def test_closing_while_the_bundle_is_read_starts_no_worker(stage: Stage) -> None:
    script = json.dumps({"folder": str(stage.folder), "starts": ["ready"]})
    for turns in range(4):
        engine = Engine(EngineConfig(str(stage.folder)), command=[sys.executable, str(SCRIPT), script])
        starting = asyncio.create_task(engine.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        await engine.close()
        with pytest.raises(HexserveError, match="shutting down"):
            await starting
        assert (engine.state, engine.worker_pid()) == (EngineState.STOPPED, None)


@pytest.mark.parametrize("seed", range(4))
async def test_two_kills_at_any_moment_and_aborts_between_change_no_text(stage: Stage, seed: int) -> None:
    engine, random = await stage.engine(), Random(seed)
    kills_at = sorted(random.sample(range(1, 3000), 2))
    delivered = 0

    async def follow(asked: Request, leave_after: int | None) -> str:
        nonlocal delivered
        stream, text = engine.submit(asked), ""
        async for delta in stream:
            text += delta.text
            delivered += len(delta.token_ids)
            if kills_at and delivered >= kills_at[0] and (pid := engine.worker_pid()) is not None:
                with contextlib.suppress(ProcessLookupError):  # the one before is just being reaped
                    os.kill(pid, KILL)
                    kills_at.pop(0)
            if leave_after is not None and len(text) >= leave_after:
                stream.abort()
        return text

    asked = [request(f"r{i}", f"prompt {i} many@{1 + i % 3}", tokens=60 + i) for i in range(40)]
    leaves = [random.randrange(1, 60) if i % 5 == 0 else None for i in range(40)]
    async with asyncio.timeout(GUARD_S):
        texts = await asyncio.gather(*(follow(*pair) for pair in zip(asked, leaves, strict=True)))
    for one, leave, text in zip(asked, leaves, texts, strict=True):
        assert expected(one).startswith(text)
        assert leave is not None or text == expected(one)
