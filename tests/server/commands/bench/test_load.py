"""Order of play, what is recorded, and that a run that is stopped keeps what it has."""

import asyncio
from collections.abc import Sequence

import pytest

from server.commands.bench.load import (
    BenchLoad,
    BenchTarget,
    BenchTurn,
    Book,
    TurnRecord,
    measure,
    turns,
)
from server.commands.bench.measured import AnswerOutcome, MeasuredAnswer, PromptSource
from server.commands.bench.session import prepare
from server.commands.http_client import StreamedUsage, Unreachable
from tests.server.commands.scripted_server import Script, serving


def test_servers_alternate() -> None:
    order = [(turn.clients, turn.server) for turn in turns((1, 4), 2, 2)]
    assert order == [(1, 0), (1, 1), (1, 0), (1, 1), (4, 0), (4, 1), (4, 0), (4, 1)]


def run(scripts: Sequence[Script], load: BenchLoad, seed: int = 0) -> Book:
    """Measure against scripted servers, without the requests that come before a load."""

    async def both(addresses: Sequence[str]) -> Book:
        book = Book()
        targets = [BenchTarget("AB"[n], address, "", "scripted", 30) for n, address in enumerate(addresses)]
        await measure(targets, PromptSource(seed, 20), load, book, lambda record: None)
        for target in targets:
            await target.close()
        return book

    if len(scripts) == 1:
        with serving(scripts[0]) as first:
            return asyncio.run(both([first]))
    with serving(scripts[0]) as first, serving(scripts[1]) as second:
        return asyncio.run(both([first, second]))


def test_every_outcome_is_counted_apart() -> None:
    behaviours = ["ok", "busy", "limited", "broken", "midstream", "mute", "odd", "cut"]
    book = run([Script(behaviours)], BenchLoad((1,), len(behaviours), 8, 1))
    (level,) = book.levels()
    assert level.outcomes == {"ok": 1, "failed": 5, "429": 1, "503": 1}
    errors = [answer.error for answer in book.turns[0].answers]
    assert errors[:6] == [
        "",
        "HTTP 503: answer 503",
        "HTTP 429: answer 429",
        "HTTP 500: answer 500",
        "the engine broke",
        "no usage in the stream, so its tokens cannot be counted",
    ]
    assert errors[6].startswith("BrokenStream: not JSON")
    assert "Error" in errors[7]


def test_tokens_are_counted_by_usage_and_gaps_by_arrival() -> None:
    book = run([Script()], BenchLoad((3,), 2, 8, 1))
    (level,) = book.levels()
    assert level.output_tokens == 6 * 5  # the script's four words and an end token
    assert level.chunks_per_token == pytest.approx(4 / 5)
    assert level.gap.count == 6 * 3
    assert level.first_token.count == 6
    assert level.cached_tokens == 6 * 3
    assert level.counters is not None
    assert level.counters.figures()["useful_rows_per_step"] == 4
    assert level.counters.steps == 60
    assert level.tokens_per_second == pytest.approx(30 / level.seconds)


def test_two_servers_get_the_same_prompts_in_turns() -> None:
    scripts = [Script(), Script(has_metrics=False)]
    book = run(scripts, BenchLoad((1, 2), 2, 8, 2))
    asked = [sorted(str(body["messages"]) for body in script.bodies) for script in scripts]
    assert asked[0] == asked[1]
    assert len(set(asked[0])) == len(asked[0]) == 12
    assert [record.turn.server for record in book.turns] == [0, 1] * 4
    assert all((record.counters is None) == (record.turn.server == 1) for record in book.turns)
    compared = book.comparisons()
    assert [(each.clients, each.server) for each in compared] == [(1, 1), (2, 1)]
    assert all(each.lowest <= each.tokens_per_second <= each.highest for each in compared)  # type: ignore[operator]


def record_of(server: int, number: int, seconds: float, first_s: float) -> TurnRecord:
    answer = MeasuredAnswer(AnswerOutcome.OK, seconds, first_s, (0.01, 0.03), usage=StreamedUsage(10, 100))
    return TurnRecord(BenchTurn(1, number, server), [answer], seconds, 0.0, None, is_complete=True)


def test_ratios_are_of_the_same_round() -> None:
    seconds = {(0, 0): 1.0, (1, 0): 2.0, (0, 1): 10.0, (1, 1): 5.0, (0, 2): 1.0, (1, 2): 1.0}
    records = [record_of(server, number, value, value / 10) for (server, number), value in seconds.items()]
    (compared,) = Book(records).comparisons()
    assert (compared.tokens_per_second, compared.lowest, compared.highest) == (1.0, 0.5, 2.0)
    assert compared.first_token_p50 == 1.0
    records[-1].is_complete = False
    assert Book(records).comparisons()[0].tokens_per_second == 1.25


def test_shared_prefix_is_asked_cold_then_warm() -> None:
    script = Script()
    book = run([script], BenchLoad((1,), 1, 8, 2, prefix_tokens=50))
    starts = [body["messages"][0]["content"] for body in script.bodies[:8]]
    assert len(set(starts[:4])) == len(set(starts[4:])) == 1
    assert starts[0] != starts[4]
    assert len({str(body["messages"]) for body in script.bodies[:8]}) == 8
    (effect,) = book.prefix_effects()
    assert effect.cached_tokens == 3
    assert effect.warm_over_cold == pytest.approx(effect.warm_s / effect.cold_s)  # type: ignore[operator]


def test_answers_come_in_even_when_the_run_is_stopped() -> None:
    async def stop_after_first_answer(address: str) -> Book:
        book = Book()
        target = BenchTarget("A", address, "", "scripted", 30)
        task = asyncio.create_task(measure([target], PromptSource(0, 20), BenchLoad((1,), 10**6, 8, 1), book, print))
        while not (book.turns and book.turns[0].answers):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await target.close()
        return book

    with serving(Script()) as address:
        book = asyncio.run(stop_after_first_answer(address))
    (level,) = book.levels()
    assert not level.is_complete
    assert level.outcomes["ok"] >= 1
    assert level.tokens_per_second is not None


async def test_preparing_measures_words_and_ignore_eos() -> None:
    with serving(Script()) as willing, serving(Script(knows_ignore_eos=False)) as other:
        targets = [BenchTarget("A", willing + "/v1/", "", "", 30), BenchTarget("B", other, "", "", 30)]
        length, runs_full = await prepare(targets[:1], True)
        assert runs_full
        assert targets[0].extra == {"ignore_eos": True}
        assert targets[0].model == "scripted"
        assert (length.fixed, length.per_word) == (5.0, 2.0)
        assert (await prepare(targets, True))[1] is False
        assert targets[0].extra == targets[1].extra == {}
        for target in targets:
            await target.close()


@pytest.mark.parametrize(("extra", "least"), [({"ignore_eos": True}, 9), ({}, None)])
async def test_an_answer_that_runs_to_its_end_has_text_up_to_there(extra: dict[str, bool], least: int | None) -> None:
    """Where the end is ignored a server may sample it all the same: it is no text, and two steps become one gap."""
    script = Script()
    with serving(script) as address:
        target = BenchTarget("A", address, "", "scripted", 30)
        target.extra = extra
        await target.answer((1, 2), 9)
        await target.close()
    assert (script.bodies[-1].get("min_tokens"), script.bodies[-1].get("ignore_eos", False)) == (least, bool(extra))


async def test_a_server_that_cannot_answer_is_named() -> None:
    with serving(Script(then="broken")) as address, serving(Script(api_key="k")) as locked:
        broken, keyless = BenchTarget("A", address, "", "", 30), BenchTarget("A", locked, "", "", 30)
        keyed, nobody = BenchTarget("A", locked, "k", "", 30), BenchTarget("A", "http://127.0.0.1:9", "", "", 30)
        with pytest.raises(Unreachable, match=f"{address} cannot answer a chat: HTTP 500: answer 500"):
            await prepare([broken], True)
        with pytest.raises(Unreachable, match="401: no key"):
            await prepare([keyless], True)
        await prepare([keyed], True)
        with pytest.raises(Unreachable, match="nothing answers at http"):
            await prepare([nobody], True)
        for target in (broken, keyless, keyed, nobody):
            await target.close()


@pytest.mark.parametrize(("told_by", "gaps"), [("continuous_usage_stats", 6), ("timings_per_token", 6), ("", 3)])
def test_servers_are_asked_how_many_tokens_came(told_by: str, gaps: int) -> None:
    async def one(address: str) -> tuple[BenchTarget, MeasuredAnswer]:
        target = BenchTarget("A", address, "", "", 30)
        await prepare([target], False)
        answer = await target.answer([{"role": "user", "content": "hi"}], 8)
        await target.close()
        return target, answer

    with serving(Script(tells_tokens_by=told_by)) as address:
        target, answer = asyncio.run(one(address))
    assert list(target.counting) == ["stream_options", "timings_per_token"]
    assert (len(answer.gaps_s), answer.chunks, answer.is_counted) == (gaps, 4, bool(told_by))
    assert answer.usage == StreamedUsage(7, 5, 3)


def test_gaps_of_chunks_and_of_tokens_are_not_compared() -> None:
    book = run([Script(words=("a",) * 9, tells_tokens_by="include_usage"), Script()], BenchLoad((1,), 1, 40, 1))
    (compared,) = book.comparisons()
    assert compared.gap_p95 is None and compared.tokens_per_second is not None
    (answer,) = book.turns[0].answers
    assert answer.is_counted and len(answer.gaps_s) == 16


def test_a_number_beyond_what_was_asked_for_counts_as_one() -> None:
    book = run([Script(tells_tokens_by="include_usage")], BenchLoad((1,), 1, 3, 1))
    (answer,) = book.turns[0].answers
    assert not answer.is_counted and len(answer.gaps_s) == 3
