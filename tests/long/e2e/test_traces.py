"""A whole server with a collector beside it: spans arrive with the engine's real times, and the access log is JSON."""

import json
from pathlib import Path

import httpx

from tests.live import serving
from tests.server.observability.collector import collecting

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
QUESTION = "What is the capital of France?"
ASKED = {"model": "demo", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 16, "temperature": 0}


def test_a_server_that_is_traced(tmp_path: Path) -> None:
    with collecting() as collector:
        with serving("--otel", collector.url, "--access-log", "json", cache=tmp_path) as server:
            headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "x-request-id": "mine"}
            answer = httpx.post(f"{server.url}/v1/chat/completions", json=ASKED, headers=headers, timeout=120)
            assert "Paris" in answer.text
        spans = {span.name: span for span in collector.spans}
        assert set(spans) == {"chat demo", "prepare", "queue", "prefill", "decode"}
        assert {span.trace_id.hex() for span in spans.values()} == {TRACE}
        root = spans["chat demo"]
        assert root.parent_span_id.hex() == PARENT
        for span in spans.values():
            assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        assert spans["prefill"].end_time_unix_nano > spans["prefill"].start_time_unix_nano
        assert QUESTION not in str(collector.requests) and "Paris" not in str(collector.requests)
    (line,) = (json.loads(line) for line in server.lines if line.startswith("{"))
    usage = answer.json()["usage"]
    assert (line["trace_id"], line["request_id"], line["status"]) == (TRACE, "mine", 200)
    assert (line["prompt_tokens"], line["completion_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
