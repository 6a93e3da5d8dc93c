"""The engine as the server sees it, over scripted workers: text, bounds, slow readers, timings."""

import asyncio
import logging
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from engine.bundle.manifest import (
    GraphKind,
    GraphSpec,
    Manifest,
    TensorSpec,
    load_manifest,
    save_manifest,
)
from engine.client.engine import ClientLimits, EngineState
from engine.errors import (
    Busy,
    ContextLengthExceeded,
    EngineFailure,
    InvalidRequest,
)
from engine.messages import Ready
from engine.request import FinishReason, PromptEmbeds, Request
from tests.embeds import encoded
from tests.engine.client.client_stage import (
    CONTEXT,
    KILL,
    Stage,
    expected,
    read,
    request,
    stage,
    text_of,
)
from tests.engine.client.scripted_worker import expected_text, expected_token

__all__ = ["stage"]


async def test_a_stream_from_start_to_end(stage: Stage) -> None:
    engine = await stage.engine()
    stream = engine.submit(request("a", tokens=30))
    assert (stream.prompt_tokens, engine.unfinished) == (5, 1)
    deltas = await read(stream)
    assert "".join(delta.text for delta in deltas) == expected(request("a", tokens=30))
    assert [delta.finish for delta in deltas] == [None] * 29 + [FinishReason.LENGTH]
    assert deltas[-1].timings is not None
    assert (deltas[-1].timings.prompt_tokens, deltas[-1].timings.generated_tokens) == (5, 30)
    assert sum((delta.token_ids for delta in deltas), ()) == tuple(map(ord, expected(request("a", tokens=30))))
    assert (engine.unfinished, len(engine.finished)) == (0, 1)
    stream.abort()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


async def test_what_is_served(stage: Stage) -> None:
    engine = await stage.engine()
    info = engine.info
    assert (info.name, info.created, info.max_context, info.device) == ("tiny", 1_700_000_000, CONTEXT, "scripted")
    assert info.vocab == info.manifest.model.vocab == 262
    assert info.fingerprint.startswith("hexserve-")
    assert isinstance(info.ready, Ready)
    assert (engine.state, engine.restarts) == (EngineState.READY, 0)
    again = await stage.engine()
    assert again.info.fingerprint == info.fingerprint
    save_manifest(stage.folder, replace_name(stage.folder))
    assert (await stage.engine()).info.fingerprint != info.fingerprint


def replace_name(folder: Path) -> Manifest:
    """The folder's manifest under another name."""
    return msgspec.structs.replace(load_manifest(folder), name="other")


async def test_prompts_become_tokens(stage: Stage) -> None:
    engine = await stage.engine()
    ids = await engine.chat_prompt([{"role": "user", "content": "hé<|im_end|>"}])
    assert ids.count(260) == 1
    assert await engine.text_prompt("hello<|im_end|>") == (256, 257, ord("o"), 260)
    for prompt in (engine.text_prompt(""), engine.chat_prompt([])):
        with pytest.raises(InvalidRequest, match="empty"):
            await prompt
    with pytest.raises(ContextLengthExceeded):
        await engine.text_prompt("x" * CONTEXT)
    with pytest.raises(ContextLengthExceeded):
        await engine.chat_prompt([{"role": "user", "content": "x" * 10_000_000}])
    with pytest.raises(InvalidRequest, match="chat_template_kwargs"):
        await engine.chat_prompt([{"role": "user", "content": "x"}], options={"tokenize": True})


async def test_token_ids_are_checked(stage: Stage) -> None:
    engine = await stage.engine()
    assert engine.check_ids([0, 261], "prompt") == (0, 261)
    for ids in ([262], [-1], [True], [1.0], ["1"], [10**30], [None]):
        with pytest.raises(InvalidRequest, match=r"prompt\[0\]") as refused:
            engine.check_ids(ids, "prompt")  # type: ignore[arg-type]
        assert refused.value.param == "prompt"
    with pytest.raises(InvalidRequest, match="empty"):
        engine.check_ids([], "prompt")
    with pytest.raises(ContextLengthExceeded):
        engine.check_ids([1] * CONTEXT, "prompt")


async def test_prompt_and_completion_must_fit(stage: Stage) -> None:
    engine = await stage.engine()
    with pytest.raises(ContextLengthExceeded, match=r"4096 tokens.*requested 4097 tokens \(5 in the messages, 4092"):
        engine.submit(request("a", tokens=CONTEXT - 4))
    engine.submit(request("a", tokens=CONTEXT - 5)).abort()


async def test_a_request_without_a_seed_gets_one(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = await stage.engine()
    submitted: list[Request] = []
    monkeypatch.setattr(engine._supervisor, "submit", lambda request, emitted: submitted.append(request))
    streams = [engine.submit(request("a")), engine.submit(request("a", seed=7))]
    assert submitted[0].params.seed is not None
    assert submitted[1].params.seed == 7
    assert submitted[0].id != submitted[1].id
    for stream in streams:
        stream.abort()


async def test_a_stop_string_finishes_at_once_and_frees_the_worker(stage: Stage) -> None:
    engine = await stage.engine()
    whole = expected_text(request("a").prompt_ids, 40)
    stop = whole[20:23]
    cut = whole.index(stop)
    asked = request("a", "hello", tokens=4000)
    deltas = await read(engine.submit(asked, stop=(stop,)))
    assert "".join(delta.text for delta in deltas) == whole[:cut]
    assert (deltas[-1].finish, deltas[-1].stopped_by) == (FinishReason.STOP, stop)
    assert deltas[-1].timings is not None
    assert deltas[-1].timings.generated_tokens == sum(len(delta.token_ids) for delta in deltas) == cut + len(stop)
    assert engine.unfinished == 0
    shown = await text_of(engine.submit(request("a", tokens=4000), stop=(stop,), include_stop=True))
    assert shown == whole[: cut + len(stop)]


async def test_tokens_of_one_event_behind_a_stop_string_are_dropped(stage: Stage) -> None:
    engine = await stage.engine()
    asked = request("a", "many@7", tokens=70, logprobs=1)
    whole = expected_text(asked.prompt_ids, 70)
    deltas = await read(engine.submit(asked, stop=(whole[9:11],)))
    used = whole.index(whole[9:11]) + 2
    assert sum(len(delta.token_ids) for delta in deltas) == sum(len(delta.logprobs) for delta in deltas) == used


async def test_a_stop_token_counts_but_is_not_text(stage: Stage) -> None:
    engine = await stage.engine()
    asked = request("a")
    stop = expected_token(asked.prompt_ids, 6)
    first = [expected_token(asked.prompt_ids, i) for i in range(7)].index(stop)
    deltas = await read(engine.submit(request("a", stop_token_ids=(stop,), logprobs=2)))
    assert "".join(delta.text for delta in deltas) == expected(asked)[:first]
    assert (deltas[-1].stopped_by, sum(len(delta.token_ids) for delta in deltas)) == (stop, first + 1)
    assert deltas[0].logprobs[0].top[1] == ("\ufffd", b"\xc3", -3.0)


async def test_abort_ends_the_reader_and_frees_the_place(stage: Stage) -> None:
    engine = await stage.engine(limits=ClientLimits(max_queued=1))
    stream = engine.submit(request("a", "hold@2"))
    reader = asyncio.create_task(read(stream))
    await asyncio.sleep(0)
    stream.abort()
    stream.abort()
    assert len(await reader) <= 2
    assert engine.unfinished == 0
    assert await text_of(engine.submit(request("a"))) == expected(request("a"))


async def test_a_cancelled_reader_can_be_followed_by_another(stage: Stage) -> None:
    engine = await stage.engine()
    stream = engine.submit(request("a", "hold@1", tokens=3))
    await anext(stream)
    reader = asyncio.create_task(read(stream))
    await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    pid = engine.worker_pid()
    assert pid is not None
    os.kill(pid, KILL)
    assert len(await read(stream)) == 2


async def test_the_queue_is_bounded(stage: Stage) -> None:
    engine = await stage.engine(limits=ClientLimits(max_queued=3, max_queued_tokens=20))
    streams = [engine.submit(request(f"r{i}", "hold@0")) for i in range(3)]
    with pytest.raises(Busy, match="3 requests are queued or running, the limit is 3") as refused:
        engine.submit(request("late"))
    assert refused.value.retry_after_s >= 1.0
    streams[0].abort()
    with pytest.raises(Busy, match="12 prompt tokens are waiting"):
        engine.submit(request("late", "nine more tokens"))
    engine.submit(request("late", "short"))


async def test_a_reader_that_lags_behind_is_dropped(stage: Stage) -> None:
    engine = await stage.engine(limits=ClientLimits(stream_buffer=16))
    slow = engine.submit(request("slow", tokens=2000))
    quick = engine.submit(request("quick", tokens=2000))
    assert await text_of(quick) == expected(request("quick", tokens=2000))
    assert engine.unfinished == 0
    with pytest.raises(EngineFailure, match="16 pieces behind"):
        await read(slow)


async def test_timings_are_logged(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "hexserve")
    engine = await stage.engine()
    await read(engine.submit(request("a")))
    await engine.close()
    lines = [(record.levelno, record.getMessage()) for record in caplog.records]
    one = "prompt:10.0ms generate:100.0ms tps:prompt=500.0 generate=110.0 rows/step=0.0 acceptance=0.00"
    assert (logging.DEBUG, f"a#1 {one}") in lines
    assert (logging.INFO, f"requests:1 {one}") in lines


async def test_many_short_lives_leave_nothing_behind(stage: Stage) -> None:
    engine = await stage.engine(limits=ClientLimits(max_queued=8))
    for index in range(500):
        engine.submit(request(f"r{index}", "hold@0")).abort()
    assert engine.unfinished == 0
    assert not engine._streams
    assert not engine._supervisor.pending
    assert await text_of(engine.submit(request("last"))) == expected(request("last"))


async def test_texts_to_ids_and_back(stage: Stage) -> None:
    engine = await stage.engine()
    facts = engine.text_facts
    text = f"héllo{facts.special_tokens[0]}x" * 2000  # longer than the context
    ids = await engine.tokenize(text, add_special=False)
    assert len(ids) > engine.info.max_context
    assert await engine.detokenize(ids) == text
    names = await engine.token_names(ids)
    assert names.count(facts.special_tokens[0]) == 2000
    assert (
        await asyncio.gather(*(engine.tokenize("ab", True) for _ in range(5))) == [await engine.text_prompt("ab")] * 5
    )
    assert await engine.token_names([10**6]) == ("",)
    with pytest.raises(InvalidRequest, match="surrogate"):
        await engine.tokenize("a\ud800", add_special=False)
    assert facts.chat_template == (stage.folder / "chat_template.jinja").read_text("utf-8")


async def test_a_bundle_without_an_embedding_graph_takes_no_embeddings(stage: Stage) -> None:
    engine = await stage.engine()
    with pytest.raises(InvalidRequest, match="'prompt_embeds': this bundle's graphs take token ids only") as caught:
        await engine.embeds_prompt("AAAA", "prompt_embeds")
    assert caught.value.param == "prompt_embeds"
    with pytest.raises(InvalidRequest, match="take token ids only"):
        engine.submit(replace(request("a"), prompt_embeds=b"1234"))
    assert engine.unfinished == 0


async def test_embeddings_are_read_where_they_can_be_used(stage: Stage) -> None:
    manifest = load_manifest(stage.folder)
    table = GraphSpec(
        *("lut", manifest.graphs[0].file, GraphKind.LUT, 1, 2),
        (TensorSpec("input_ids", "int32", (1, "rows")),),
        (TensorSpec("embedded", "float32", (1, "rows", 3)),),
    )
    save_manifest(stage.folder, msgspec.structs.replace(manifest, graphs=(table,)))
    engine = await stage.engine()
    found = await engine.embeds_prompt(encoded(np.ones((2, 3), np.float16)), "prompt_embeds")
    assert found == PromptEmbeds(2, np.ones((2, 3), np.float32).tobytes())
    asked = replace(request("a"), prompt_ids=found.placeholders, prompt_embeds=found.data)
    assert await text_of(engine.submit(asked)) == expected_text((0, 0), 12)
    with pytest.raises(InvalidRequest, match="has 24 bytes, 60 are expected"):
        engine.submit(replace(request("a"), prompt_embeds=found.data))
