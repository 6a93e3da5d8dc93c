"""One streamed request and what its reader saw of it; the prompts of the load. Prompts are made up, of a chosen length,
or the lines of a file. The same seed gives the same prompts."""

import dataclasses
import itertools
import math
import operator
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import msgspec
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from engine.errors import UnusableInput
from server.commands.http_client import AnswerFailed, AnswerRefused, ServerClient, StreamedUsage

Message = dict[str, str]
BenchPrompt = list[Message] | tuple[int, ...]  # a chat, or token ids to go on from
TAIL_TOKENS = 12  # behind a shared prefix

WORDS = (
    "the a one every little old bright quiet green red cold warm river mountain garden house window table bird "
    "fox child sailor baker teacher letter story song morning evening winter summer road bridge market village "
    "sea island finds sees carries builds follows remembers asks answers opens closes near under over between "
    "after before with"
)
FIGURES = ("useful_rows_per_step", "decode_rows_per_step", "tokens_per_decode", "rows_run_per_step", "outside_graph")
BUSY = ("vllm:num_requests_running", "vllm:num_requests_waiting")


@dataclass(frozen=True, slots=True)
class WordLength:
    """Prompt tokens of a chat with `words` words: fixed + per_word * words, as measured on the server."""

    fixed: float = 0.0
    per_word: float = 1.0

    @classmethod
    def fitted(cls, short: tuple[int, int], long: tuple[int, int]) -> "WordLength":
        per_word = max((long[1] - short[1]) / (long[0] - short[0]), 0.01)
        return cls(max(short[1] - per_word * short[0], 0.0), per_word)

    def words(self, tokens: int) -> int:
        return max(1, round((tokens - self.fixed) / self.per_word))


@dataclass(frozen=True, slots=True)
class PromptSource:
    """Prompts by place: the same place gives the same prompt on every server, no two places share one. `texts`: chats
    of a prompts file, used in a shuffled order instead of made-up ones. `vocabulary`: when it is not 0, prompts are
    exactly `prompt_tokens` random token ids below it."""

    seed: int
    prompt_tokens: int
    length: WordLength = WordLength()
    texts: tuple[tuple[Message, ...], ...] = ()
    vocabulary: int = 0

    def prompt(self, *place: object) -> BenchPrompt:
        if self.vocabulary:
            return self._ids(self.prompt_tokens, *place)
        draw = self._draw(*place)
        if self.texts:
            return list(self.texts[draw.randrange(len(self.texts))])
        return [user(words(draw, self.length.words(self.prompt_tokens)))]

    def prefixed(self, prefix_tokens: int, prefix: object, tail: object) -> BenchPrompt:
        """A prompt whose first `prefix_tokens` tokens are the same for every `tail`; of a chat, or so."""
        if self.vocabulary:
            return self._ids(prefix_tokens, "prefix", prefix) + self._ids(TAIL_TOKENS, "tail", prefix, tail)
        start = words(self._draw("prefix", prefix), self.length.words(prefix_tokens))
        return [{"role": "system", "content": start}, user(words(self._draw("tail", prefix, tail), TAIL_TOKENS))]

    def _ids(self, count: int, *place: object) -> tuple[int, ...]:
        return tuple(self._draw(*place).choices(range(self.vocabulary), k=count))

    def _draw(self, *place: object) -> random.Random:
        return random.Random("/".join(map(str, (self.seed, *place))))


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def words(draw: random.Random, count: int) -> str:
    known = WORDS.split()
    chosen = [draw.choice(known) for _ in range(count)]
    return ". ".join(" ".join(chosen[start : start + 10]) for start in range(0, count, 10)) + "."


def read_prompts(path: Path) -> tuple[tuple[Message, ...], ...]:
    """One chat per line: plain text, or JSON with "messages" or "prompt". Raises UnusableInput."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableInput(f"prompts file {path} cannot be read: {error}") from error
    chats = [_chat(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not chats:
        raise UnusableInput(f"prompts file {path} holds no prompt")
    return tuple(chats)


class _Said(msgspec.Struct):
    role: str
    content: str


class _Line(msgspec.Struct):
    prompt: str | None = None
    messages: list[_Said] | None = None


def _chat(line: str, origin: str) -> tuple[Message, ...]:
    if not line.lstrip().startswith("{"):
        return (user(line.strip()),)
    try:
        given = msgspec.json.decode(line, type=_Line)
    except msgspec.ValidationError:
        given = _Line()
    except msgspec.DecodeError as error:
        raise UnusableInput(f"{origin}: {error}") from error
    if given.prompt is not None and given.messages is None:
        return (user(given.prompt),)
    if given.prompt is None and given.messages:
        return tuple({"role": each.role, "content": each.content} for each in given.messages)
    raise UnusableInput(f'{origin}: needs "prompt" (text) or "messages" (a list of objects with role and content)')


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of `count` values in one unit; all zero when there are none."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    highest: float = 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """Percentile of values in any order, linear between neighbours. Raises ValueError without values."""
    if not values:
        raise ValueError("no percentile of no values")
    return float(np.percentile(values, percent))


def distribution(values: Sequence[float]) -> Distribution:
    if not values:
        return Distribution()
    p50, p90, p95, p99 = np.percentile(values, (50, 90, 95, 99)).tolist()
    return Distribution(len(values), math.fsum(values) / len(values), p50, p90, p95, p99, max(values))


def median(values: Sequence[float]) -> float | None:
    """The middle value, None without values."""
    return percentile(values, 50) if values else None


def ratio(part: float | None, whole: float | None) -> float | None:
    """`part` over `whole`, None when either is unknown or `whole` is not positive."""
    return part / whole if part is not None and whole is not None and whole > 0 else None


class AnswerOutcome(StrEnum):
    """How a request ended. Refusals under load are no failures: they are the server's answer to too much."""

    OK = "ok"
    FAILED = "failed"
    RATE_LIMITED = "429"
    BUSY = "503"


REFUSALS: Mapping[int, AnswerOutcome] = {429: AnswerOutcome.RATE_LIMITED, 503: AnswerOutcome.BUSY}


@dataclass(frozen=True, slots=True)
class MeasuredAnswer:
    """Seconds are counted from the moment the request was sent. gaps_s: of `token_gaps`. chunks: arrivals of text.
    is_counted: every chunk told how many tokens had come."""

    outcome: AnswerOutcome
    seconds: float
    first_token_s: float | None = None
    gaps_s: tuple[float, ...] = ()
    chunks: int = 0
    is_counted: bool = False
    usage: StreamedUsage | None = None
    status: int = 0
    error: str = ""

    @property
    def seconds_per_token(self) -> float | None:
        """Mean time per token after the first; None with fewer than two tokens or arrivals."""
        return ratio(sum(self.gaps_s), self.usage.completion - 1) if self.usage and self.gaps_s else None


def token_gaps(arrivals: Sequence[tuple[float, int]]) -> tuple[float, ...]:
    """Seconds for each token behind the first chunk: a chunk of n tokens that came g behind the one before counts as n
    gaps of g / n, as SGLang's bench_serving has it. arrivals: of text, and the tokens so far, 0 = not told: then it
    counts as one."""
    found: list[float] = []
    for (earlier, before), (later, after) in itertools.pairwise(arrivals):
        tokens = max(after - before, 1) if before and after else 1
        found += [(later - earlier) / tokens] * tokens
    return tuple(found)


async def ask(client: ServerClient, prompt: BenchPrompt, fields: Mapping[str, Any]) -> MeasuredAnswer:
    """Send one streamed request, with max_tokens among its fields. What goes wrong on the way is in the answer."""
    sent_at, arrivals = time.perf_counter(), list[tuple[float, int]]()
    usage, outcome = None, None
    status, error, is_finished, most = 200, "", False, fields["max_tokens"]
    send = client.complete(prompt, fields) if isinstance(prompt, tuple) else client.stream(prompt, fields)
    try:
        async for piece, arrived_at in send:
            if piece.text or piece.reasoning:
                arrivals.append((arrived_at - sent_at, piece.tokens if 0 < piece.tokens <= most else 0))
            usage, error = piece.usage or usage, error or piece.error
            is_finished = is_finished or piece.finish_reason is not None
        error = error or ("" if is_finished else "the stream ended before a finish_reason came")
        error = error or ("" if usage else "no usage in the stream, so its tokens cannot be counted")
    except AnswerFailed as failure:
        status, error = failure.status, str(failure)
        outcome = REFUSALS.get(status) if isinstance(failure, AnswerRefused) else None
    outcome = outcome or (AnswerOutcome.FAILED if error else AnswerOutcome.OK)
    seconds, first_token_s = time.perf_counter() - sent_at, arrivals[0][0] if arrivals else None
    is_counted = all(tokens for _, tokens in arrivals)
    gaps_s = token_gaps(arrivals)
    return MeasuredAnswer(outcome, seconds, first_token_s, gaps_s, len(arrivals), is_counted, usage, status, error)


@dataclass(frozen=True, slots=True)
class ScrapedCounters:
    """Counters since the start, each with its name in /metrics; times in seconds. A difference has the same fields."""

    steps: Annotated[float, "hexserve:steps_total"]
    rows_used: Annotated[float, "hexserve:rows_used_total"]
    rows_run: Annotated[float, "hexserve:rows_run_total"]
    decode_rows: Annotated[float, "hexserve:decode_rows_total"]
    prefill_rows: Annotated[float, "hexserve:prefill_rows_total"]
    run_s: Annotated[float, "hexserve:run_seconds_total"]
    step_s: Annotated[float, "hexserve:step_seconds_total"]
    prefix_queries: Annotated[float, "vllm:prefix_cache_queries_total"]
    prefix_hits: Annotated[float, "vllm:prefix_cache_hits_total"]
    preemptions: Annotated[float, "vllm:num_preemptions_total"]
    drafted_rows: Annotated[float, "hexserve:drafted_rows_total"]
    accepted_rows: Annotated[float, "hexserve:accepted_rows_total"]

    def figures(self) -> dict[str, float | None]:
        """What follows from them, by name in FIGURES; None where nothing was counted. tokens_per_decode: of a sequence
        in a step that continues its answer, 1 and the guesses that were right. rows_run: padding included.
        outside_graph: share of the time of steps, copies and re-laying of pools included."""
        undrafted, inside = self.decode_rows - self.drafted_rows, ratio(self.run_s, self.step_s)
        return {
            "useful_rows_per_step": ratio(self.rows_used, self.steps),
            "decode_rows_per_step": ratio(self.decode_rows, self.steps),
            "tokens_per_decode": ratio(undrafted + self.accepted_rows, undrafted),
            "rows_run_per_step": ratio(self.rows_run, self.steps),
            "outside_graph": None if inside is None else 1 - inside,
        }


_HINTS = get_type_hints(ScrapedCounters, include_extras=True)
SAMPLES: Mapping[str, str] = {field: get_args(hint)[1] for field, hint in _HINTS.items()}


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at /metrics. `unfinished`: sequences that still run or wait."""

    counters: ScrapedCounters
    unfinished: float


def read_metrics(text: str) -> Reading | None:
    """Parse a Prometheus exposition; None when it is not a hexserve's, or cannot be parsed."""
    values: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values[sample.name] = values.get(sample.name, 0.0) + sample.value
    except ValueError:
        return None
    if any(name not in values for name in SAMPLES.values()):
        return None
    counters = ScrapedCounters(**{field: values[name] for field, name in SAMPLES.items()})
    return Reading(counters, sum(values.get(name, 0.0) for name in BUSY))


def between(before: ScrapedCounters, after: ScrapedCounters) -> ScrapedCounters:
    return ScrapedCounters(*map(operator.sub, dataclasses.astuple(after), dataclasses.astuple(before)))


def total(parts: list[ScrapedCounters]) -> ScrapedCounters | None:
    """The sum of several differences, None without any."""
    return ScrapedCounters(*map(sum, zip(*map(dataclasses.astuple, parts), strict=True))) if parts else None
