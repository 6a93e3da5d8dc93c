"""Speed of bundles that are served side by side and asked in turns."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from server.commands.bench.load import BenchTarget
from server.commands.bench.measured import AnswerOutcome, MeasuredAnswer
from server.commands.bench.prompts import PromptSource
from server.commands.http_client import Unreachable
from server.commands.own_server import free_port, running_server, serve_command

ROUNDS = 5
ANSWER_TOKENS = 64
PROMPT_TOKENS = 256
TIMEOUT_S = 600.0
SEED = 0
NO_GUESSES = ("--lookup-rows", "0")  # an answer of one token over and over could be guessed
FORCED = 100.0


@dataclass(frozen=True, slots=True)
class Rate:
    """Tokens a second: the median of the rounds, the slowest and the fastest."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ServedSpeed:
    """Of one bundle. decode: tokens of an answer behind its first one. prompt: tokens of a prompt until that first one.

    prompt_tokens: of each prompt.
    """

    decode: Rate
    prompt: Rate
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class TimedBundle:
    """What is served. vocabulary: number of ids. longest: tokens of prompt and answer. said: an id of visible text."""

    folder: Path
    vocabulary: int
    longest: int
    said: int


def measure_speed(bundles: Sequence[TimedBundle]) -> list[ServedSpeed]:
    """Serve all bundles and ask one after the other, round by round. ServerFailed, Unreachable."""
    with ExitStack() as stack:
        addresses = []
        for bundle in bundles:
            port = free_port()
            command = [*serve_command(str(bundle.folder), port), *NO_GUESSES]
            addresses.append(stack.enter_context(running_server(str(bundle.folder), command, port)))
        answers = asyncio.run(_asked(bundles, addresses))
    return [speed_of(each) for each in answers]


def speed_of(answers: Sequence[MeasuredAnswer]) -> ServedSpeed:
    """The figures of answers to prompts of one length. Unreachable when one has failed, or none can be timed.

    An answer whose pieces all came in one read tells no time: this process did not get to read in between.
    """
    decode, prompt, tokens = [], [], 0
    for answer in answers:
        if answer.outcome is not AnswerOutcome.OK or answer.usage is None:
            raise Unreachable(f"the speed cannot be measured: {answer.error}")
        tokens = answer.usage.prompt
        if answer.first_token_s and answer.seconds_per_token:
            decode.append(1 / answer.seconds_per_token)
            prompt.append(tokens / answer.first_token_s)
    if not decode:
        raise Unreachable("the speed cannot be measured: no answer came in more than one piece")
    return ServedSpeed(_rate(decode), _rate(prompt), tokens)


async def _asked(bundles: Sequence[TimedBundle], addresses: Sequence[str]) -> list[list[MeasuredAnswer]]:
    """The answers of each bundle, without those of the first round, which warms up."""
    targets = [
        BenchTarget(str(bundle.folder), at, "", "", TIMEOUT_S) for bundle, at in zip(bundles, addresses, strict=True)
    ]
    found: list[list[MeasuredAnswer]] = [[] for _ in bundles]
    try:
        for target, bundle in zip(targets, bundles, strict=True):
            await target.find_model()
            target.extra = {"ignore_eos": True, "logit_bias": {str(bundle.said): FORCED}}
        for turn in range(ROUNDS + 1):
            for target, bundle, answers in zip(targets, bundles, found, strict=True):
                answers.append(await _answer(target, bundle, turn))
    finally:
        for target in targets:
            await target.close()
    return [answers[1:] for answers in found]


async def _answer(target: BenchTarget, bundle: TimedBundle, turn: int) -> MeasuredAnswer:
    """To a prompt of random tokens that no cache has."""
    length = max(1, min(PROMPT_TOKENS, bundle.longest - ANSWER_TOKENS))
    prompts = PromptSource(SEED, length, vocabulary=bundle.vocabulary)
    return await target.answer(prompts.prompt(turn), max(2, min(ANSWER_TOKENS, bundle.longest - length)))


def _rate(found: Sequence[float]) -> Rate:
    return Rate(median(found), min(found), max(found))
