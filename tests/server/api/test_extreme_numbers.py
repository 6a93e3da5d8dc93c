"""Every number of every body at its extremes: refused with its limit, or sampled with; a client causes no 5xx."""

from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from pydantic import BaseModel, TypeAdapter

from engine.runtime.interface import Logits
from engine.sampling.sampler import RowContext, SampledToken, sample
from server.api.openai.completions import CompletionRequest
from server.api.openai.response_request import ResponsesRequest
from server.generation.chat_request import ChatRequest
from tests.server.scripted_engine import NAME, ScriptedEngine

ROUTES: dict[str, tuple[type[BaseModel], dict[str, Any]]] = {
    "/v1/chat/completions": (ChatRequest, {"messages": [{"role": "user", "content": "hi"}]}),
    "/v1/completions": (CompletionRequest, {"prompt": "hi"}),
    "/v1/responses": (ResponsesRequest, {"input": "hi"}),
}
# As JSON: numbers that neither a float64 nor an int64 holds are a client's to send too.
EXTREMES = (
    *(
        "0",
        "-0.0",
        "1",
        "-1",
        "0.5",
        "2",
        "10",
        "1e-5",
        "1e-7",
        "1e-37",
        "1e-40",
        "1e-300",
        "1e-308",
        "5e-324",
        "1e-400",
    ),
    *("1e37", "1e39", "1e308", "1e400", "-1e-308", "-1e308", "-1e400", "1e-2000", "9" * 400),
    *("2147483647", "2147483648", "-2147483649", "9223372036854775807", "9223372036854775808", "18446744073709551616"),
)
ROWS = np.array(
    [
        np.linspace(-30, 30, 1000),
        np.linspace(-3e4, 3e4, 1000),
        np.full(1000, 65504.0),
        np.full(1000, -65504.0),
        [0.0] * 999 + [1e-38],
    ],
    np.float32,
)


def numbers_of(model: type[BaseModel]) -> Iterator[str]:
    """The fields that may hold a number."""
    for name, field in model.model_fields.items():
        schema = str(TypeAdapter(field.rebuild_annotation()).json_schema())
        if name == "logit_bias" or "'type': 'number'" in schema or "'type': 'integer'" in schema:
            yield name


FIELDS = [(route, name) for route, (model, _) in ROUTES.items() for name in numbers_of(model)]


def test_the_table_finds_the_fields() -> None:
    assert {"temperature", "repetition_penalty", "logit_bias", "seed", "min_p"} <= {name for _, name in FIELDS}


@pytest.mark.parametrize(("route", "field"), FIELDS)
async def test_no_number_is_our_fault(
    client: httpx.AsyncClient, engine: ScriptedEngine, route: str, field: str
) -> None:
    _, body = ROUTES[route]
    fixed = httpx.Request("POST", "http://server", json={"model": NAME, **body}).content.removesuffix(b"}")
    for number in EXTREMES:
        value = f'{{"5": {number}}}' if field == "logit_bias" else number
        content = fixed + f',"{field}":{value}}}'.encode()
        engine.submitted.clear()
        answer = await client.post(route, content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code in (200, 400), (number, answer.text)
        for request, *_ in engine.submitted:
            rows = [RowContext(request.params, seed=1, prompt=range(1000), completion=[5, 5, 7])] * len(ROWS)
            with np.errstate(all="raise", under="ignore"):
                picked = sample(Logits.of(ROWS), rows)
            assert all(isinstance(token, SampledToken) for token in picked), (number, picked)


@pytest.mark.parametrize("route", ROUTES)
async def test_a_repetition_penalty_near_zero_is_refused_with_its_limit(client: httpx.AsyncClient, route: str) -> None:
    _, body = ROUTES[route]
    answer = await client.post(route, json={"model": NAME, **body, "repetition_penalty": 1e-308})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "repetition_penalty")
    assert "0.0001" in error["message"]
