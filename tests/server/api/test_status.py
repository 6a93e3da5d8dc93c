"""Models, health, metrics, request ids and the access log."""

import logging
import re
from collections.abc import Mapping

import httpx
import pytest
from fastapi import FastAPI
from openai.types import Model
from prometheus_client.parser import text_string_to_metric_families

from engine.client.engine import EngineState
from engine.config import EngineConfig
from engine.errors import Busy, BusyReason, StepFailed
from server.middleware.auth import KeyRing, read_keys
from server.settings import Settings
from tests.server.answers import check_answer
from tests.server.one_model import create_app
from tests.server.scripted_engine import NAME, ScriptedEngine

REJECTIONS = "vllm:admission_rejections_total"
HELLO = {"model": NAME, "messages": [{"role": "user", "content": "hello"}]}

VLLM_NAMES = """num_requests_running num_requests_waiting kv_cache_usage_perc prompt_tokens generation_tokens
prefix_cache_queries prefix_cache_hits num_preemptions request_success admission_rejections
time_to_first_token_seconds inter_token_latency_seconds request_time_per_output_token_seconds
e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds
request_prompt_tokens request_generation_tokens request_params_n request_params_max_tokens"""


async def test_the_model_list(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.think()
    body = (await client.get("/v1/models")).json()
    assert body["object"] == "list"
    (model,) = body["data"]
    check_answer(Model, model)
    assert (model["id"], model["max_model_len"], model["context_length"]) == (NAME, 100, 100)
    assert model["meta"]["device"] == "CPU"
    assert model["meta"]["capabilities"] == ["completion", "tools", "reasoning"]
    assert (await client.get(f"/v1/models/{NAME}")).json() == model


async def test_a_name_with_a_slash(engine: ScriptedEngine) -> None:
    settings = Settings(EngineConfig("unused"), model_name="org/model-1")
    transport = httpx.ASGITransport(create_app(settings, engine, KeyRing()))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        assert (await client.get("/v1/models/org/model-1")).json()["id"] == "org/model-1"
        assert (await client.get("/v1/models/org%2Fmodel-1")).json()["id"] == "org/model-1"
        answer = await client.post("/v1/chat/completions", json=HELLO | {"model": "org/model-1"})
        assert answer.json()["model"] == "org/model-1"


@pytest.mark.parametrize(
    ("state", "health", "live", "ready"),
    [
        (EngineState.LOADING, 503, 200, 503),
        (EngineState.READY, 200, 200, 200),
        (EngineState.RESTARTING, 200, 200, 503),
        (EngineState.DRAINING, 503, 200, 503),
        (EngineState.DEAD, 503, 503, 503),
    ],
)
async def test_health(
    client: httpx.AsyncClient, engine: ScriptedEngine, state: EngineState, health: int, live: int, ready: int
) -> None:
    engine.state = state
    answers = [await client.get(path) for path in ("/health", "/health/live", "/health/ready")]
    assert [answer.status_code for answer in answers] == [health, live, ready]
    assert {answer.json()["state"] for answer in answers} == {state.value}


async def test_draining_refuses_new_requests_and_says_when_to_come_back(
    client: httpx.AsyncClient, app: FastAPI
) -> None:
    app.state.server.in_flight.draining = True
    answer = await client.post("/v1/chat/completions", json=HELLO)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
    assert answer.json()["error"]["type"] == "server_error"
    assert (await client.get("/health/ready")).json() == {"status": "unavailable", "state": "draining"}


async def test_loading_is_busy_everywhere(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.state = EngineState.LOADING
    for answer in (await client.get("/v1/models"), await client.post("/v1/chat/completions", json=HELLO)):
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert (await client.get("/metrics")).status_code == 200


async def test_a_full_server_says_so_before_tokenising(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.live = {str(number) for number in range(16)}
    answer = await client.post("/v1/chat/completions", json=HELLO)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert "16" in answer.json()["error"]["message"]
    assert not engine.chats
    metrics = await scrape(client)
    assert metrics['vllm:admission_rejections_total{reason="max_num_queued_reqs"}'] == 1


async def test_every_answer_is_counted_and_nobody_makes_up_labels(engine: ScriptedEngine) -> None:
    keys = read_keys("anna:a-secret-of-anna", "")
    transport = httpx.ASGITransport(create_app(Settings(EngineConfig("unused")), engine, keys))
    key = {"Authorization": "Bearer a-secret-of-anna"}
    async with httpx.AsyncClient(transport=transport, base_url="http://server", headers=key) as client:
        await client.post("/v1/chat/completions", json=HELLO)
        await client.post("/v1/chat/completions", json=HELLO, headers={"Authorization": "Bearer wrong"})
        await client.post("/v1/chat/completions", json={})
        await client.get("/v1/models/of-my-own")
        await client.get("/v1/of-my-own")
        await client.request("MINE", "/health")
        metrics = await scrape(client)
    counted = {name: value for name, value in metrics.items() if name.startswith("http_requests_total")}
    chat = 'http_requests_total{handler="/v1/chat/completions",method="POST",status='
    assert (counted[chat + '"200"}'], counted[chat + '"401"}'], counted[chat + '"400"}']) == (1, 1, 1)
    assert counted['http_requests_total{handler="/v1/models/{model_id:path}",method="GET",status="404"}'] == 1
    assert counted['http_requests_total{handler="other",method="GET",status="404"}'] == 1
    assert counted['http_requests_total{handler="/health",method="other",status="405"}'] == 1
    assert len(counted) == 6


REASONS = [
    (BusyReason.REQUESTS, "max_num_queued_reqs"),
    (BusyReason.PROMPT_TOKENS, "max_num_queued_tokens"),
    (BusyReason.WORKER, "worker_behind"),
    (BusyReason.GRAMMARS, "max_num_queued_grammars"),
    (BusyReason.WATCHERS, "max_num_pass_watchers"),
]


@pytest.mark.parametrize(("reason", "label"), REASONS)
async def test_a_refusal_is_counted_by_its_reason(
    client: httpx.AsyncClient, engine: ScriptedEngine, reason: BusyReason, label: str
) -> None:
    engine.refusal = Busy("too much waits", reason, 7.2)
    answer = await client.post("/v1/completions", json={"model": NAME, "prompt": "a", "n": 2})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "8")
    counted = {name: value for name, value in (await scrape(client)).items() if name.startswith(REJECTIONS)}
    assert counted == {f'{REJECTIONS}{{reason="{label}"}}': 1}


@pytest.mark.parametrize("refusal", [Busy.loading(), Busy.shutting_down()])
async def test_a_state_is_no_load(client: httpx.AsyncClient, engine: ScriptedEngine, refusal: Busy) -> None:
    engine.refusal = refusal
    answer = await client.post("/v1/completions", json={"model": NAME, "prompt": "a"})
    assert answer.status_code == 503
    assert not any(name.startswith(REJECTIONS) for name in await scrape(client))


async def test_what_a_broken_engine_says_is_cleaned(client: httpx.AsyncClient, engine: ScriptedEngine) -> None:
    engine.script = lambda _: [StepFailed("pass failed at 0x7f00deadbeef in /srv/models/secret.onnx\n\x1b[31m")]
    answer = await client.post("/v1/chat/completions", json=HELLO)
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("server_error", None, None)
    assert error["message"] == "pass failed at … in … [31m"


async def scrape(client: httpx.AsyncClient) -> Mapping[str, float]:
    """Every sample as 'name{labels}' -> value, parsed by prometheus' own reader."""
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}"] = sample.value
    return samples


async def test_metric_names(client: httpx.AsyncClient) -> None:
    await client.post("/v1/chat/completions", json=HELLO | {"n": 2})
    text = (await client.get("/metrics")).text
    families = {family.name for family in text_string_to_metric_families(text)}
    assert {f"vllm:{name}" for name in VLLM_NAMES.split()} <= families
    samples = await scrape(client)
    model = f'model_name="{NAME}"'
    assert samples[f"hexserve:rows_used_total{{{model}}}"] == 90
    assert samples[f"hexserve:rows_run_total{{{model}}}"] == 120
    assert samples[f"hexserve:steps_total{{{model}}}"] == 7
    assert samples[f"hexserve:experts_chosen_total{{{model}}}"] == 480
    assert samples[f"hexserve:experts_read_total{{{model}}}"] == 31
    assert samples[f"hexserve:graph_switches_total{{{model}}}"] == 5
    assert samples[f"hexserve:worker_restarts_total{{{model}}}"] == 2
    assert samples[f"hexserve:batch_occupancy{{{model}}}"] == 0.75
    assert samples[f"hexserve:kv_slots_used{{{model}}}"] == 32
    assert samples[f"vllm:kv_cache_usage_perc{{{model}}}"] == 0.5
    assert samples[f"vllm:num_requests_running{{{model}}}"] == 3
    assert samples[f'vllm:request_success_total{{finished_reason="stop",{model}}}'] == 2
    assert samples[f"vllm:time_to_first_token_seconds_count{{{model}}}"] == 2
    assert samples[f"vllm:inter_token_latency_seconds_count{{{model}}}"] == 8
    assert samples[f"vllm:request_params_n_sum{{{model}}}"] == 2
    assert any(name.startswith("hexserve:device_info") and 'device="CPU"' in name for name in samples)


async def test_metrics_tell_what_is_left_of_several_devices(
    engine: ScriptedEngine, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(engine), "device", "CPU without its NPU")
    assert 'hexserve:device_info{device="CPU without its NPU",' in (await client.get("/metrics")).text


@pytest.mark.parametrize("path", ["/v1/models", "/nowhere", "/health", "/metrics"])
async def test_a_request_id_on_every_answer(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path, headers={"x-request-id": "mine_1.2-3"})
    assert answer.headers["x-request-id"] == "mine_1.2-3"
    assert answer.headers["openai-processing-ms"].isdigit()
    for bad in ("", "a b", "x" * 129, "é", "a;b"):
        answer = await client.get(path, headers={"x-request-id": bad.encode()})
        assert re.fullmatch(r"req_[0-9a-f]{32}", answer.headers["x-request-id"])


async def test_the_access_log_has_neither_prompts_nor_control_characters(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "hexserve.access"):
        await client.post("/v1/chat/completions", json=HELLO, headers={"x-stainless-retry-count": "2"})
        await client.get("/evil%0d%0aline%1b[31m")
    first, second = (record.getMessage() for record in caplog.records if record.name == "hexserve.access")
    assert re.fullmatch(r"POST /v1/chat/completions 200 \d+\.\dms req_\w+ retry=2", first)
    assert re.fullmatch(r"GET /evil line \[31m 404 \d+\.\dms req_\w+", second)


async def test_our_own_bugs_are_answered_in_the_envelope(
    app: FastAPI, client: httpx.AsyncClient, engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: object) -> list[object]:
        raise ZeroDivisionError("secret")

    engine.script = broken  # type: ignore[assignment]
    answer = await client.post("/v1/chat/completions", json=HELLO)
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert answer.json()["error"]["type"] == "server_error"
    assert answer.headers["x-request-id"]
    assert "ZeroDivisionError" in caplog.text


async def test_the_openapi_document_is_true(app: FastAPI, client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    for path in ("/v1/chat/completions", "/v1/completions"):
        responses = document["paths"][path]["post"]["responses"]
        assert "422" not in responses
        assert {"200", "400", "404", "413", "415", "500", "503", "default"} <= set(responses)
        assert set(responses["200"]["content"]) == {"application/json", "text/event-stream"}
    assert document["components"]["schemas"]["ChatRequest"]["additionalProperties"] is False


async def test_one_model_says_nothing_of_coming_and_going(client: httpx.AsyncClient) -> None:
    (model,) = (await client.get("/v1/models")).json()["data"]
    assert list(model["meta"]) == [
        *("device", "family", "quant", "split", "parameters", "vocab", "variants", "kv_bytes_per_token", "fingerprint"),
        *("task", "generates", "capabilities"),
    ]
    assert "hexserve:model_" not in (await client.get("/metrics")).text
    assert (await client.post("/models/load", json={"model": model["id"]})).json()["state"] == "ready"
    refused = await client.post("/models/unload", json={"model": model["id"]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "model_not_unloadable")
    assert "--idle-unload" in refused.json()["error"]["message"]
