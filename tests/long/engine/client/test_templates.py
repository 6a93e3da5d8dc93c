"""Chat templates that loop, grow or kill their process: each costs its own request, and the engine still serves."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.client.chat_prompts import ChatPrompts
from engine.client.engine import ClientLimits, Engine, EngineState
from engine.config import EngineConfig
from engine.errors import BundleError, Busy, CallerError, ContextLengthExceeded, InvalidRequest
from engine.isolation.helper_pool import HelperLimits
from tests.engine.client.client_stage import CONTEXT, Stage, expected, request, stage, text_of
from tests.engine.tiny_bundle import write_bundle

__all__ = ["stage"]
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signal")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a bound on address space")

GROW = "{% set ns = namespace(x=START) %}{% for i in range(64) %}{% set ns.x = ns.x JOIN ns.x %}{% endfor %}"
LOOP = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
TOO_SLOW = "ran for more than 1 s"
# Whichever comes first on a busy machine; the last where memory ran out in the interpreter itself and it died.
TOO_MUCH = "more than 1024 MiB of memory|ran for more than 1 s|within the limits of this server"
HOSTILE = {
    "nested loops": (LOOP, TOO_SLOW),
    "a number": ("{% set x = (messages | length * 10) ** (10 ** 9) %}", TOO_SLOW),
    "deep macros": (
        "{% macro f(n) %}{% if n %}{% set a = f(n - 1) %}{% set b = f(n - 1) %}{% endif %}{% endmacro %}"
        "{% set x = f(60) %}",
        TOO_SLOW,
    ),
    "macros without end": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    "a range": ("{% for i in range(10 ** 9) %}x{% endfor %}", "[Rr]ange"),
    "indent": ("{{ messages | tojson(indent=10 ** 9) }}", TOO_MUCH),
    "a long string": ("{% set x = messages[0].content * 10 ** 9 %}", TOO_MUCH),
    "a doubled string": (GROW.replace("START", "'x'").replace("JOIN", "~"), TOO_MUCH),
    "a doubled list": (GROW.replace("START", "[1]").replace("JOIN", "+"), TOO_MUCH),
}
BUDGET = ClientLimits(helpers=HelperLimits(1.0, 2, 1.0))
FOREVER = ClientLimits(helpers=HelperLimits(600.0, 2))


def template_pids(engine: Engine) -> tuple[int, ...]:
    """Process ids of an engine's renderers."""
    assert engine._chats is not None
    assert engine._chats._templates is not None
    return engine._chats._templates.pids


def when_attacked(hostile: str) -> str:
    return f"{{% if messages[0].content == 'attack' %}}{hostile}{{% else %}}{{{{ messages[0].content }}}}{{% endif %}}"


def chat(content: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content}]


@LINUX
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_template_costs_its_own_request(stage: Stage, name: str) -> None:
    hostile, sentence = HOSTILE[name]
    write_bundle(stage.folder, CONTEXT, when_attacked(hostile))
    engine = await stage.engine(limits=BUDGET)
    with pytest.raises(InvalidRequest, match=sentence) as refused:
        await engine.chat_prompt(chat("attack"))
    assert refused.value.param == "messages"
    assert await engine.chat_prompt(chat("xyz")) == (120, 121, 122)
    assert await text_of(engine.submit(request("a"))) == expected(request("a"))


@pytest.mark.parametrize("printed", ["{{ 'x' * 10 ** 7 }}", "{% for i in range(99999) %}xxxxxxxx{% endfor %}"])
async def test_what_says_too_much_is_too_long_a_prompt(stage: Stage, printed: str) -> None:
    write_bundle(stage.folder, CONTEXT, when_attacked(printed))
    engine = await stage.engine()
    with pytest.raises(ContextLengthExceeded):
        await engine.chat_prompt(chat("attack"))
    assert await engine.chat_prompt(chat("xyz")) == (120, 121, 122)


async def test_neighbours_do_not_wait_for_a_template_that_loops_nor_does_the_end(stage: Stage) -> None:
    write_bundle(stage.folder, CONTEXT, when_attacked(LOOP))
    engine = await stage.engine(limits=FOREVER)
    looping = asyncio.create_task(engine.chat_prompt(chat("attack")))
    ids = await asyncio.gather(*(engine.chat_prompt(chat("xyz")) for _ in range(16)))
    assert set(ids) == {(120, 121, 122)} and not looping.done()
    pids = template_pids(engine)
    await engine.close()
    with pytest.raises(Busy, match="shutting down"):
        await looping
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@POSIX
@pytest.mark.parametrize("name", ["SIGKILL", "SIGSTOP"])
async def test_what_happens_to_the_process_of_a_template_is_not_the_requests_fault(stage: Stage, name: str) -> None:
    engine = await stage.engine(limits=BUDGET)
    prompt = await engine.chat_prompt(chat("hello"))
    (first,) = template_pids(engine)
    os.kill(first, getattr(signal, name))
    assert await engine.chat_prompt(chat("hello")) == prompt
    assert first not in template_pids(engine)


UNUSABLE = {
    "no end": ("{% if %}", "cannot be compiled"),
    "a number": ("{% if 10 ** (10 ** 9) %}{% endif %}", "cannot be compiled within 1 s"),
    "blocks in blocks": ("{% for i in x %}" * 60 + "{% endfor %}" * 60, "cannot be compiled"),
    "parentheses": ("{{ " + "(" * 100_000 + ")" * 100_000 + " }}", "cannot be compiled"),
    "calls of calls": ("{{ x" + "()" * 100_000 + " }}", "cannot be compiled"),
}


@POSIX
@pytest.mark.parametrize("name", UNUSABLE)
async def test_a_template_that_cannot_be_compiled_is_a_sentence_at_the_start(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    template, sentence = UNUSABLE[name]
    made: list[ChatPrompts] = []

    def noted(*given: Any) -> ChatPrompts:
        made.append(ChatPrompts(*given))
        return made[-1]

    monkeypatch.setattr("engine.client.engine.ChatPrompts", noted)
    write_bundle(tmp_path, CONTEXT, template)
    engine = Engine(EngineConfig(str(tmp_path)), BUDGET)
    with pytest.raises(BundleError, match=f"the chat template.*{sentence}"):
        await engine.start()
    assert engine.state is EngineState.STOPPED
    (chats,) = made
    assert chats._templates is not None and chats._templates.pids == ()


async def test_every_kind_of_text_reaches_the_template_unchanged(stage: Stage) -> None:
    write_bundle(stage.folder, CONTEXT, "{{ messages[0].extra | tojson }}{{ messages[0].extra[0] | length }}")
    engine = await stage.engine()
    extra = ["\ue000é😀\u2028", 1.0, 10**40, 1e400, None, True, {"b": 1, "a": [-0.0]}]
    text = '["\ue000é😀\u2028", 1.0, 1' + "0" * 40 + ', Infinity, null, true, {"b": 1, "a": [-0.0]}]4'
    ids = await engine.chat_prompt([{"role": "user", "content": "", "extra": extra}])
    assert await engine.detokenize(ids) == text
    with pytest.raises(CallerError, match="cannot be given these messages"):
        await engine.chat_prompt([{"role": "user", "content": "", "extra": [10**5000]}])
