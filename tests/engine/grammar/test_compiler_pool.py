"""Helper processes: one's failure or slowness is its own request's, and no neighbour waits for it."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from engine.demo.location import demo_folder
from engine.errors import Busy, BusyReason, EngineFailure, InvalidRequest
from engine.grammar.compiler_pool import GrammarCompilerPool
from engine.grammar.spec import CalledTool, GrammarSpec, JsonSchema, Regex, ToolCalls
from engine.isolation.helper_pool import HelperLimits
from tests.call_formats import HERMES
from tests.engine.isolation.helper_bench import HelperBench, is_alive

SCRIPT = Path(__file__).with_name("slow_compiler.py")
FOREVER = HelperLimits(600.0, 2)


class Bench(HelperBench[GrammarCompilerPool]):
    def __call__(self, limits: HelperLimits) -> GrammarCompilerPool:
        self.made.append(GrammarCompilerPool([sys.executable, str(SCRIPT), str(self.folder)], limits))
        return self.made[-1]


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    made = Bench(tmp_path)
    async with made.guarded():
        yield made


def spec(pattern: str) -> GrammarSpec:
    return GrammarSpec(Regex(pattern))


async def test_a_neighbour_is_compiled_while_a_hostile_form_still_is(bench: Bench) -> None:
    compiler_pool = bench(FOREVER)
    hostile = asyncio.create_task(compiler_pool.compile(spec("hang"), "guided_regex"))
    await bench.hanging()
    assert await compiler_pool.compile(spec("a"), "guided_regex") == "grammar of a"
    assert not hostile.done()
    hostile.cancel()  # its client leaves: the compiler it kept busy goes with it
    await asyncio.wait([hostile])
    assert await compiler_pool.compile(spec("b"), "guided_regex") == "grammar of b"
    assert len(bench.starts) == 2 and not is_alive(bench.starts[0])


async def test_too_slow_is_that_requests_fault_and_the_compiler_is_replaced(bench: Bench) -> None:
    compiler_pool = bench(HelperLimits(0.05, 1))
    with pytest.raises(InvalidRequest, match=r"'guided_regex'.*more than 0.05 s") as slow:
        await compiler_pool.compile(spec("hang"), "guided_regex")
    assert slow.value.param == "guided_regex"
    patient = bench(FOREVER)
    assert await patient.compile(spec("a"), "guided_regex") == "grammar of a"
    assert not is_alive(bench.starts[0])


async def test_a_compiler_that_dies_is_replaced(bench: Bench) -> None:
    compiler_pool = bench(FOREVER)
    with pytest.raises(InvalidRequest, match="cannot be compiled"):
        await compiler_pool.compile(spec("die"), "guided_regex")
    assert await compiler_pool.compile(spec("a"), "guided_regex") == "grammar of a"
    assert len(bench.starts) == 3  # the form that kills was given to two


async def test_a_form_does_not_pay_for_the_death_of_its_compiler(bench: Bench) -> None:
    compiler_pool = bench(FOREVER)
    assert await compiler_pool.compile(spec("die once"), "guided_regex") == "grammar of die once"
    assert len(bench.starts) == 2


async def test_a_death_is_never_remembered(bench: Bench) -> None:
    compiler_pool = bench(FOREVER)
    for tried in (2, 4):
        with pytest.raises(InvalidRequest, match="cannot be compiled"):
            await compiler_pool.compile(spec("die"), "guided_regex")
        assert len(bench.starts) == tried


@pytest.mark.skipif(sys.platform == "win32", reason="no signal stops a process")
@pytest.mark.parametrize("harm", ["SIGSTOP", "SIGKILL"])
async def test_a_compiler_that_was_harmed_while_idle_costs_no_request(bench: Bench, harm: str) -> None:
    compiler_pool = bench(FOREVER)
    assert await compiler_pool.compile(spec("a"), "guided_regex") == "grammar of a"
    os.kill(bench.starts[0], signal.Signals[harm])
    assert await compiler_pool.compile(spec("b"), "guided_regex") == "grammar of b"
    assert len(bench.starts) == 2 and not is_alive(bench.starts[0])


@pytest.mark.skipif(sys.platform == "win32", reason="no signal stops a process")
async def test_a_compiler_that_is_stopped_while_it_compiles_costs_its_own_request_only(bench: Bench) -> None:
    compiler_pool = bench(HelperLimits(1.0, 1))
    stopped = asyncio.create_task(compiler_pool.compile(spec("hang"), "guided_regex"))
    await bench.hanging()
    os.kill(bench.starts[0], signal.SIGSTOP)
    with pytest.raises(InvalidRequest, match="more than 1 s"):
        await stopped
    assert await compiler_pool.compile(spec("a"), "guided_regex") == "grammar of a"
    assert not is_alive(bench.starts[0])


async def test_the_same_form_is_compiled_once(bench: Bench) -> None:
    compiler_pool = bench(FOREVER)
    assert await compiler_pool.compile(spec("a"), "x") == await compiler_pool.compile(spec("a"), "x")
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="it is refused"):
            await compiler_pool.compile(spec("refuse"), "x")
    assert len(bench.starts) == 1 and len(compiler_pool._known) == 2  # the second refusal asked nobody


async def test_what_took_too_long_is_tried_again(bench: Bench) -> None:
    compiler_pool = bench(HelperLimits(0.05, 1))
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="takes more than"):
            await compiler_pool.compile(spec("hang"), "x")
    assert len(bench.starts) == 2


async def test_who_asks_for_the_same_at_once_asks_once(bench: Bench) -> None:
    compiler_pool = bench(HelperLimits(600.0, 1))
    answers = await asyncio.gather(*(compiler_pool.compile(spec("a"), "x") for _ in range(32)))
    assert set(answers) == {"grammar of a"} and len(bench.starts) == 1


async def test_only_so_many_wait_for_a_compiler(bench: Bench) -> None:
    compiler_pool = bench(HelperLimits(600.0, 1))
    waiting = [asyncio.create_task(compiler_pool.compile(spec("hang"), "x")) for _ in range(32)]
    await bench.hanging()
    with pytest.raises(Busy, match="32 requests wait") as refused:
        await compiler_pool.compile(spec("a"), "x")
    assert refused.value.reason is BusyReason.GRAMMARS
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert await compiler_pool.compile(spec("a"), "x") == "grammar of a"


async def test_what_is_remembered_is_bounded_in_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.grammar.compiler_pool.REMEMBERED_BYTES", 1000)
    compiler_pool = bench(FOREVER)
    for letter in "abcdef":  # each has 400 bytes here and more there
        await compiler_pool.compile(spec(letter * 400), "x")
        assert len(compiler_pool._known) == 1 and compiler_pool._known_bytes <= 1000
    await compiler_pool.compile(spec("b" * 600), "x")
    assert not compiler_pool._known and compiler_pool._known_bytes == 0


async def test_too_large_is_refused_before_anyone_is_asked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.grammar.compiler_pool.LARGEST_BYTES", 1000)
    compiler_pool = bench(FOREVER)
    with pytest.raises(InvalidRequest, match="the limit is 1000") as large:
        await compiler_pool.compile(spec("a" * 1001), "guided_regex")
    assert large.value.code == "string_above_max_length"
    assert not (bench.folder / "starts").exists()


async def test_after_the_end_nothing_is_started(bench: Bench) -> None:
    compiler_pool = bench(FOREVER)
    await compiler_pool.close()
    with pytest.raises(Busy):
        await compiler_pool.compile(spec("a"), "x")


async def test_a_compiler_that_cannot_start_is_our_fault(tmp_path: Path) -> None:
    with pytest.raises(EngineFailure):
        await GrammarCompilerPool([str(tmp_path / "nothing")]).compile(spec("a"), "x")
    with pytest.raises(EngineFailure):
        await GrammarCompilerPool([sys.executable, "-c", "pass"]).compile(spec("a"), "x")
    with pytest.raises(EngineFailure):  # what it writes is no frame
        await GrammarCompilerPool([sys.executable, "-c", "print('x' * 64)"]).compile(spec("a"), "x")


async def test_the_real_compiler() -> None:
    command = [sys.executable, "-m", "engine.grammar.compiler", str(demo_folder() / "tokenizer.json"), "3072", "2", "0"]
    compiler_pool = GrammarCompilerPool(command, HelperLimits(60.0))
    try:
        assert "lark_grammar" in await compiler_pool.compile(spec("^(a+)+$"), "guided_regex")
        enum = JsonSchema(json.dumps({"enum": [f"value {index}" for index in range(20_000)]}))
        assert "value 19999" in await compiler_pool.compile(GrammarSpec(enum), "guided_json")
        with pytest.raises(InvalidRequest, match="unclosed group"):
            await compiler_pool.compile(spec("(a"), "guided_regex")
        with pytest.raises(InvalidRequest, match="Invalid type: strin"):
            await compiler_pool.compile(GrammarSpec(JsonSchema('{"type": "strin"}')), "guided_json")
        calls = ToolCalls(HERMES, (CalledTool("f", '{"not": {}}', is_lenient=False),), False, 1, Regex("a"))
        with pytest.raises(InvalidRequest, match="Invalid 'tools': 'f': Unimplemented") as tool:
            await compiler_pool.compile(GrammarSpec(calls), "response_format")
        assert tool.value.param == "tools"
    finally:
        await compiler_pool.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps a bound on address space")
async def test_the_real_compiler_under_a_hard_memory_limit_below_its_own() -> None:
    arguments = [str(demo_folder() / "tokenizer.json"), "3072", "2", "0"]
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
        "from engine.grammar.compiler import main; main(sys.argv[1:])"
    )
    command = [sys.executable, "-P", "-c", code, *arguments]
    compiler_pool = GrammarCompilerPool(command, HelperLimits(60.0))
    try:
        assert "lark_grammar" in await compiler_pool.compile(spec("^a+$"), "guided_regex")
    finally:
        await compiler_pool.close()
