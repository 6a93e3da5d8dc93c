"""The real server with keys: what schemathesis makes of it, and its tokenizer against transformers."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

import httpx
import openai
import pytest
import schemathesis
from hypothesis import given
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance
from transformers import AutoTokenizer

from engine.demo.location import demo_folder
from tests.asked_by_schema import made_up
from tests.live import LiveServer, serving

KEY = "sk-e2e-0123456789"
HEADERS = {"Authorization": f"Bearer {KEY}"}
EXAMPLES = 8
POSTS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
pytestmark = pytest.mark.skipif(not (demo_folder() / "model.safetensors").is_file(), reason="needs the embedded model")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(f"# one per line\ne2e:sha256:{sha256(KEY.encode()).hexdigest()}\n", encoding="utf-8")
    with serving("--bundle", "demo", "--api-key-file", str(file), "--isolate-prefix-cache") as live:
        yield live


def test_only_a_key_opens_it(server: LiveServer) -> None:
    assert httpx.get(f"{server.url}/health/live").status_code == 200
    messages = [
        {"role": "system", "content": "You answer questions about the capitals of countries in Europe and elsewhere."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    good, bad = (openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) for key in (KEY, "sk-no"))
    for _ in range(2):
        answer = good.chat.completions.create(model="demo", messages=messages, temperature=0)  # type: ignore[call-overload]
        assert answer.choices[0].message.content
    assert answer.usage.prompt_tokens_details.cached_tokens > 0  # one's own prompts are found again
    with pytest.raises(openai.AuthenticationError):
        bad.models.list()
    assert any("key=e2e" in line for line in server.lines)
    assert KEY not in "\n".join(server.lines)
    assert "capital" not in "\n".join(server.lines)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=str)
@pytest.mark.parametrize("path", POSTS)
def test_no_5xx(server: LiveServer, path: str, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json", headers=HEADERS)

    @made_up(EXAMPLES)
    @given(case=schema[path]["POST"].as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        if isinstance(case.body, dict) and mode is GenerationMode.POSITIVE:
            case.body |= {"model": "demo"} | ({"max_tokens": 4} if path.startswith("/v1") else {})
            case.body.pop("max_completion_tokens", None)
        answer = case.call(headers=HEADERS, timeout=60)
        case.validate_response(
            answer, checks=[not_a_server_error, content_type_conformance, response_schema_conformance]
        )

    ask()
    assert httpx.get(f"{server.url}/health/ready", headers=HEADERS).status_code == 200


def test_its_tokenizer_is_transformers(server: LiveServer) -> None:
    theirs = AutoTokenizer.from_pretrained(str(demo_folder()))
    with httpx.Client(base_url=server.url, headers=HEADERS) as client:
        info = client.get("/tokenizer_info").json()
        assert info["eos_token"] == theirs.eos_token
        assert info["chat_template"] == theirs.chat_template
        for text in ("What is 17 + 25?", "naïve 👩‍👩‍👧 नमस्ते\n\t", f"a{theirs.eos_token}b", ""):
            body = {"prompt": text, "add_special_tokens": False, "return_token_strs": True}
            ours = client.post("/tokenize", json=body).json()
            assert ours["tokens"] == theirs.encode(text, add_special_tokens=False)
            assert ours["token_strs"] == theirs.convert_ids_to_tokens(ours["tokens"])
            assert client.post("/detokenize", json={"tokens": ours["tokens"]}).json()["prompt"] == text
        messages = [{"role": "user", "content": "Hello!"}]
        ours = client.post("/tokenize", json={"messages": messages}).json()["tokens"]
        expected = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert ours == theirs.encode(expected, add_special_tokens=False)


def test_long_texts_hold_nobody_up(server: LiveServer) -> None:
    def tokenize(text: str) -> int:
        return httpx.post(f"{server.url}/tokenize", json={"prompt": text}, headers=HEADERS, timeout=60).status_code

    with ThreadPoolExecutor(4) as threads, httpx.Client(base_url=server.url, headers=HEADERS, timeout=60) as client:
        long = [threads.submit(tokenize, text) for text in ("a" * 2**20, "word " * 100_000, "\u0300" * 2**17)]
        body = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 4}
        assert client.post("/v1/chat/completions", json=body).status_code == 200
        assert [answer.result() for answer in long] == [200] * 3
    assert tokenize("a" * (2**20 + 1)) == 400
