"""Requests before the load: which model answers, how many tokens a prompt has, whether ignore_eos is taken."""

import random
from collections.abc import Sequence

from server.commands.bench.answers import AnswerOutcome, MeasuredAnswer
from server.commands.bench.prompts import WordLength, user, words
from server.commands.bench.target import BenchTarget
from server.commands.http_client.address import Unreachable

SHORT_WORDS, LONG_WORDS = 8, 48
IGNORE_EOS = {"ignore_eos": True}


async def prepare(
    targets: Sequence[BenchTarget], wants_full_length: bool, vocabulary: int = 0
) -> tuple[WordLength, bool]:
    """Find models, warm every server up and measure words against prompt tokens on the first one.

    Returns that length and whether answers run to max_tokens. They do so only if every server takes ignore_eos.
    vocabulary: when it is not 0, prompts are token ids below it. Raises Unreachable.
    """
    lengths = []
    for target in targets:
        await target.find_model()
        lengths.append(await _length(target, vocabulary))
    runs_full = wants_full_length and all([await _takes_ignore_eos(target, vocabulary) for target in targets])
    for target in targets:
        target.extra = IGNORE_EOS if runs_full else {}
    return lengths[0], runs_full


async def _length(target: BenchTarget, vocabulary: int) -> WordLength:
    measured = []
    for count in (SHORT_WORDS, LONG_WORDS):
        answer = await _try(target, count, vocabulary)
        if answer.outcome is not AnswerOutcome.OK or answer.usage is None:
            kind = "a prompt of token ids" if vocabulary else "a chat"
            raise Unreachable(f"{target.address} cannot answer {kind}: {answer.error}")
        measured.append((count, answer.usage.prompt))
    return WordLength.fitted(measured[0], measured[1])


async def _takes_ignore_eos(target: BenchTarget, vocabulary: int) -> bool:
    target.extra = IGNORE_EOS
    answer = await _try(target, SHORT_WORDS, vocabulary)
    return answer.outcome is AnswerOutcome.OK


async def _try(target: BenchTarget, count: int, vocabulary: int) -> MeasuredAnswer:
    draw = random.Random(count)
    ids = tuple(draw.choices(range(vocabulary), k=count)) if vocabulary else None
    return await target.answer(ids or [user(words(draw, count))], 2)
