"""langchain's standard tests of the Qwen file, by hexserve and by llama-server: who passes more of them."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from server.commands.own_server import free_port, running_child
from tests.clients.environments import run_client
from tests.live import serving
from tools.llama_cpp.programs import LlamaCpp
from tools.real_models.fetch import RealModels


@pytest.fixture
def llama_server(real_models: RealModels, qwen_coder: Path) -> Iterator[str]:
    """Address of llama-server with this file."""
    built = LlamaCpp(real_models.fetch("llama-cpp"), real_models.folder / "llama.cpp-build", print)
    command = [
        str(built.program("llama-server")),
        "-m",
        str(qwen_coder),
        "-c",
        "8192",
        "-np",
        "1",
        "--jinja",
        "--no-ui",
    ]
    port = free_port()
    with running_child([*command, "--host", "127.0.0.1", "--port", str(port)], port, "health"):
        yield f"http://127.0.0.1:{port}"


def passed(url: str, model: str) -> set[str]:
    """The tests that a server passes; all that it declares ran."""
    variables = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "none"}
    done = run_client("langchain", {**variables, "OPENAI_MODEL": model}, "published.py")
    assert done.code == 0, done.errors
    found: dict[str, str] = json.loads(done.last_line())
    assert sum(outcome in ("passed", "failed") for outcome in found.values()) == 39
    return {name for name, outcome in found.items() if outcome == "passed"}


@pytest.mark.full
def test_no_fewer_pass_than_with_llama_server(
    qwen_coder: Path, llama_server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = passed(llama_server, "qwen")
    with serving(str(qwen_coder), "--model-name", "qwen") as server:
        ours = passed(server.url, "qwen")
    with capsys.disabled():
        print(f"\nhexserve passes {len(ours)} of 39, llama-server {len(theirs)}")
        print(f"only hexserve: {sorted(ours - theirs)}\nonly llama-server: {sorted(theirs - ours)}")
    assert len(ours) >= len(theirs)
