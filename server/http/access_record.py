"""One line of the access log, as text or as JSON. Pure."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from engine.request import RequestTimings
from server.http.request_facts import RequestFacts

ACCESS_LOGGER = "hexserve.access"


@dataclass(frozen=True, slots=True)
class AccessRecord:
    """A request that has ended. `at`: Unix seconds; `path` is bounded and clean; key, retry and trace_id may be ''.

    status 0: the client left before an answer began.
    """

    at: float
    method: str
    path: str
    status: int
    milliseconds: float
    request_id: str
    key: str
    retry: str
    has_left: bool
    trace_id: str
    facts: RequestFacts


def text_line(record: AccessRecord) -> str:
    """For people: what is not there is left out."""
    text = f"{record.method} {record.path} {record.status} {record.milliseconds:.1f}ms {record.request_id}"
    if record.key:
        text += f" key={record.key}"
    accepted, drafted = record.facts.guesses
    if drafted:
        text += f" guesses={accepted}/{drafted}"
    if record.retry:
        text += f" retry={record.retry}"
    if record.trace_id:
        text += f" trace={record.trace_id}"
    return text + " client left" if record.has_left else text


def json_line(record: AccessRecord) -> str:
    """One JSON object: the fields of docs/observability.md, without those that a request does not have."""
    time = datetime.fromtimestamp(record.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    fields: dict[str, Any] = {
        "time": time,
        "method": record.method,
        "path": record.path,
        "status": record.status,
        "duration_ms": round(record.milliseconds, 1),
        "request_id": record.request_id,
        "client_left": record.has_left,
    }
    named = {"key": record.key, "retry": int(record.retry or 0), "trace_id": record.trace_id}
    fields |= {name: value for name, value in named.items() if value}
    return msgspec.json.encode(fields | generation_fields(record.facts)).decode()


def generation_fields(facts: RequestFacts) -> dict[str, Any]:
    """What a generation adds; token counts and times of choices are there once a choice has come to its end."""
    launched = facts.launched
    if launched is None:
        return {}
    fields: dict[str, Any] = {
        "model": launched.model,
        "id": launched.id,
        "choices": launched.choices,
        "prompt_tokens": launched.prompt_tokens,
    }
    if facts.ended:
        fields["finish_reasons"] = dict(Counter(end.reason for end in facts.ended))
    if facts.first_token_at is not None:
        fields["first_token_ms"] = round(1000 * (facts.first_token_at - launched.at), 1)
    return fields | _timing_fields(facts)


def _timing_fields(facts: RequestFacts) -> dict[str, Any]:
    """Tokens of all choices; of the times the longest, as choices run side by side."""
    timings = facts.timings
    if not timings:
        return {}

    def longest(of: Callable[[RequestTimings], float]) -> float:
        return round(max(map(of, timings)), 1)

    fields: dict[str, Any] = {
        "completion_tokens": sum(each.generated_tokens for each in timings),
        "cached_tokens": sum(each.cached_tokens for each in timings),
        "queue_ms": longest(lambda each: each.queue_ms),
        "prefill_ms": longest(lambda each: each.prompt_ms),
        "decode_ms": longest(lambda each: each.generate_ms),
        "preemptions": sum(each.preemptions for each in timings),
    }
    accepted, drafted = facts.guesses
    return fields | ({"drafted_tokens": drafted, "accepted_tokens": accepted} if drafted else {})


WRITERS: Mapping[str, Callable[[AccessRecord], str]] = {"text": text_line, "json": json_line}
