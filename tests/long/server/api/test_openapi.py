"""schemathesis reads the served document and asks what it says may be asked, and what it says may not be."""

from collections.abc import Iterator

import httpx
import pytest
import schemathesis
from hypothesis import given
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.asked_by_schema import made_up
from tests.server.served import Served, served

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
OPERATIONS = [
    "POST /v1/chat/completions",
    "POST /v1/completions",
    "POST /v1/responses",
    "POST /v1/responses/input_tokens",
    "GET /v1/responses/{response_id}",
    "DELETE /v1/responses/{response_id}",
    "POST /v1/responses/{response_id}/cancel",
    "GET /v1/responses/{response_id}/input_items",
    "POST /v1/messages",
    "POST /v1/messages/count_tokens",
    "POST /models/load",
    "POST /models/unload",
    "POST /tokenize",
    "POST /detokenize",
    "POST /v1/audio/transcriptions",
    "POST /v1/audio/translations",
    "POST /v1/embeddings",
    "POST /v1/rerank",
    "GET /tokenizer_info",
    "POST /api/chat",
    "POST /api/generate",
    "POST /api/embed",
    "POST /api/embeddings",
    "POST /api/show",
    "GET /api/tags",
    "GET /api/ps",
    "GET /api/version",
    "GET /v1/models",
    "GET /v1/models/{model_id}",
    "GET /health",
    "GET /health/live",
    "GET /health/ready",
    "GET /metrics",
    "GET /openapi.json",
    "GET /docs",
]
ENDLESS = ["GET /v1/steps"]  # asked by tests/server/api/test_steps.py
EXAMPLES = 25


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with served(api_keys="anna:sk-anna", requests_per_minute=10**9) as running:
        yield running


@pytest.fixture(scope="module")
def schema(server: Served) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json", headers=KEY)


KEY = {"Authorization": "Bearer sk-anna"}


def test_every_operation_is_asked(schema: schemathesis.BaseSchema) -> None:
    found = {operation.ok().label for operation in schema.get_all_operations()}
    assert found | {"GET /openapi.json"} == {*OPERATIONS, *ENDLESS}  # schemathesis leaves out where it got the document


QUESTIONS = [(label, GenerationMode.POSITIVE) for label in OPERATIONS] + [
    (label, GenerationMode.NEGATIVE)
    for label in OPERATIONS
    if label.startswith("POST") and not label.endswith("/cancel")
]


@pytest.mark.parametrize(("label", "mode"), QUESTIONS, ids=str)
def test_no_5xx_and_nothing_undocumented(schema: schemathesis.BaseSchema, label: str, mode: GenerationMode) -> None:
    method, path = label.split()
    strategy = schema[path][method].as_strategy(generation_mode=mode)

    @made_up(EXAMPLES)
    @given(case=strategy)
    def ask(case: schemathesis.Case) -> None:
        answer = case.call(headers=KEY)
        case.validate_response(answer, checks=CHECKS)

    ask()


def test_the_server_still_answers(server: Served) -> None:
    body = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}
    assert httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=KEY).status_code == 200
