"""The pages of docs/how-to/clients/: settings and programs are taken from the page and used against a live server."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.clients.environments import node_modules, node_program, python_environment, python_with
from tests.clients.servers import KEY, SCRIPTED_MODEL, Servers

PAGES = Path(__file__).parents[3] / "docs" / "how-to" / "clients"
BASE, MODEL = "http://127.0.0.1:8000/v1", "demo"
PROMPT = "Write a file hello.txt that says hello."


def block(page: str, language: str) -> str:
    """The last block of a language on a page."""
    text = (PAGES / f"{page}.md").read_text(encoding="utf-8")
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return found[-1]


def lines_of(page: str, program: str) -> list[list[str]]:
    """The page's shell commands that run a program, as words without the program."""
    return [shlex.split(line)[1:] for line in block(page, "sh").splitlines() if line.startswith(f"{program} ")]


def run_agent(command: list[str], home: Path) -> str:
    """What an agent printed, run in an empty folder with an empty home."""
    path = os.pathsep.join((str(node_program().parent), os.environ.get("PATH", "")))
    # Without the last one Cline leaves a daemon behind.
    quiet = {
        "CONTINUE_TELEMETRY_ENABLED": "0",
        "DO_NOT_TRACK": "1",
        "NO_UPDATE_NOTIFIER": "1",
        "CLINE_SESSION_BACKEND_MODE": "local",
    }
    environment = {"PATH": path, "HOME": str(home), "USERPROFILE": str(home), "TMPDIR": str(home), **quiet}
    done = subprocess.run(
        command,
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def told(tool: str, arguments: str) -> str:
    """A prompt that has the scripted model call a tool and then say so."""
    return f"call: {tool} {arguments}\nthen\nsay: all is written"


@pytest.mark.parametrize(
    ("page", "requirement"), [("langchain", ""), ("llama-index", "llama-index-llms-openai-like==0.8.1")]
)
def test_a_program_of_a_page(page: str, requirement: str, servers: Servers, tmp_path: Path) -> None:
    python = python_with(page, requirement) if requirement else python_environment(page)
    program = block(page, "python")
    assert program.count(BASE) == 1
    program = program.replace(BASE, f"{servers('demo').url}/v1")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "OPENAI_", "HEXSERVE_"))}
    done = subprocess.run(
        [str(python), "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path, env=kept, timeout=300
    )
    assert done.returncode == 0, done.stderr
    whole, streamed, call = done.stdout.strip().splitlines()
    assert "Paris" in whole and streamed == whole
    assert re.fullmatch(r"get_weather \{'city': '.+'\}", call)


def test_continue_writes_a_file(servers: Servers, tmp_path: Path) -> None:
    written = block("continue", "yaml")
    assert written.count(BASE) == 1 and f"model: {MODEL}\n" in written and "apiKey: none\n" in written
    written = written.replace(BASE, f"{servers('scripted').url}/v1").replace(
        f"model: {MODEL}", f"model: {SCRIPTED_MODEL}"
    )
    (tmp_path / "config.yaml").write_text(written.replace("apiKey: none", f"apiKey: {KEY}"), encoding="utf-8")
    folder = node_modules("continue", '{"private": true, "dependencies": {"@continuedev/cli": "1.5.47"}}')
    (words,) = lines_of("continue", "cn")
    assert words[-1] == PROMPT
    words[-1] = told("Write", '{"filepath": "hello.txt", "content": "hello from hexserve"}')
    assert "all is written" in run_agent([str(folder / "node_modules" / ".bin" / "cn"), *words], tmp_path)
    assert (tmp_path / "hello.txt").read_text(encoding="utf-8").strip() == "hello from hexserve"


def test_cline_writes_a_file(servers: Servers, tmp_path: Path) -> None:
    folder = node_modules("cline", '{"private": true, "dependencies": {"cline": "3.0.65"}}')
    program = str(folder / "node_modules" / ".bin" / "cline")
    url = f"{servers('scripted').url}/v1"
    changed = {BASE: url, MODEL: SCRIPTED_MODEL, "none": KEY}
    changed[PROMPT] = told("editor", '{"path": "%s", "new_text": "hello from hexserve"}' % (tmp_path / "hello.txt"))
    login, ask = ([changed.get(word, word) for word in words] for words in lines_of("cline", "cline"))
    assert {url, SCRIPTED_MODEL, KEY} <= set(login) and ask[-1].startswith("call: editor")
    run_agent([program, *login], tmp_path)
    assert "all is written" in run_agent([program, *ask], tmp_path)
    assert (tmp_path / "hello.txt").read_text(encoding="utf-8").strip() == "hello from hexserve"
