"""What spans say, in the words of OpenTelemetry's conventions for HTTP and for generative AI. Pure.

Stop strings are part of a prompt's text and left out like the rest of it.
"""

from collections.abc import Mapping

from engine.request import RequestTimings
from server.http.request_facts import Launched, RequestFacts

Attribute = str | int | float | tuple[str, ...]
PROVIDER = "hexserve"
CHAT, TEXT_COMPLETION, EMBEDDINGS, RERANK = "chat", "text_completion", "embeddings", "rerank"
TEXT_PATHS = frozenset({"/v1/completions", "/api/generate"})
MOST_CHOICES = 32  # told one by one: a request may have a hundred thousand


def span_name(method: str, facts: RequestFacts) -> str:
    """Operation and model of a generation; method and route of anything else."""
    if facts.launched is None:
        return f"{method} {facts.handler}"
    return f"{operation(facts)} {facts.launched.model}"


def operation(facts: RequestFacts) -> str:
    """The convention's word for what a generation's route does."""
    if facts.launched is not None and facts.launched.params is None:
        return RERANK if facts.handler.endswith("/rerank") else EMBEDDINGS
    return TEXT_COMPLETION if facts.handler in TEXT_PATHS else CHAT


def request_attributes(method: str, facts: RequestFacts) -> dict[str, Attribute]:
    """Of the span of a whole request."""
    found: dict[str, Attribute] = {
        "http.request.method": method,
        "http.route": facts.handler,
        "http.response.status_code": facts.status,
    }
    if facts.status >= 500:
        found["error.type"] = str(facts.status)
    if facts.launched is None:
        return found
    found |= {
        "gen_ai.operation.name": operation(facts),
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.response.id": facts.launched.id,
        "gen_ai.response.model": facts.launched.model,
        "gen_ai.usage.input_tokens": facts.launched.prompt_tokens,
    }
    if facts.ended:
        reasons = tuple(end.reason for end in facts.ended[:MOST_CHOICES])
        found["gen_ai.response.finish_reasons"] = reasons
    if any(end.reason == "error" for end in facts.ended):
        found.setdefault("error.type", "generation")
    if facts.first_token_at is not None:
        found["gen_ai.response.time_to_first_chunk"] = facts.first_token_at - facts.launched.at
    return found | _asked(facts.launched) | _used(facts.timings)


def _asked(launched: Launched) -> dict[str, Attribute]:
    """Of the request; what the model is served as stands for what was asked, which may be any text."""
    params = launched.params
    if params is None:
        return {"gen_ai.request.model": launched.model}
    found: dict[str, Attribute] = {
        "gen_ai.request.model": launched.model,
        "gen_ai.request.choice.count": launched.choices,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k,
        "gen_ai.request.frequency_penalty": params.frequency_penalty,
        "gen_ai.request.presence_penalty": params.presence_penalty,
    }
    return found if params.seed is None else found | {"gen_ai.request.seed": params.seed}


def _used(timings: tuple[RequestTimings, ...]) -> dict[str, Attribute]:
    """Once a choice has come to its end."""
    if not timings:
        return {}
    return {
        "gen_ai.usage.output_tokens": sum(each.generated_tokens for each in timings),
        "gen_ai.usage.cache_read.input_tokens": sum(each.cached_tokens for each in timings),
    }


def phases(timings: RequestTimings) -> tuple[tuple[str, float, Mapping[str, Attribute]], ...]:
    """The spans of one choice, one after the other: name, milliseconds, attributes."""
    computed = timings.prompt_tokens - timings.cached_tokens
    return (
        ("queue", timings.queue_ms, {}),
        ("prefill", timings.prompt_ms, {"hexserve.computed_tokens": computed}),
        (
            "decode",
            timings.generate_ms,
            {
                "gen_ai.usage.output_tokens": timings.generated_tokens,
                "hexserve.passes": timings.passes,
                "hexserve.pass_rows": timings.pass_rows,
                "hexserve.preemptions": timings.preemptions,
                "hexserve.drafted_tokens": timings.drafted_tokens,
                "hexserve.accepted_tokens": timings.accepted_tokens,
            },
        ),
    )
