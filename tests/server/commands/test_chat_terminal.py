"""The terminal chat through a pipe, as scripts use it, and the commands."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from server.commands.chat_terminal import Timing
from server.commands.cli import app
from server.commands.http_client import StreamedUsage
from tests.server.commands.scripted_server import WORDS, Script, serving

ANSWER = "".join(WORDS)


def talk(arguments: Sequence[str], typed: str, encoding: str = "utf-8") -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "COLUMNS": "200", "PYTHONIOENCODING": encoding}
    return subprocess.run(
        [sys.executable, "-m", "server", "chat", *arguments],
        input=typed,
        capture_output=True,
        encoding="utf-8",
        errors="surrogateescape",
        timeout=60,
        env=environment,
        check=False,
    )


def test_lines_of_a_pipe_are_questions(tmp_path: Path) -> None:
    script = Script()
    saved = tmp_path / "talk.json"
    typed = f"First?\n\nSecond?\n/temp 0.5\n/topp 0.9\n/max 7\n/save {saved}\n/reset\n/temp\nThird?\n/quit\nnever\n"
    with serving(script) as address:
        done = talk(["--url", address, "--system", "Be brief.", "--temperature", "0"], typed)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{ANSWER}\n" * 3
    system = {"role": "system", "content": "Be brief."}
    assert [len(body["messages"]) for body in script.bodies] == [2, 4, 2]
    assert script.bodies[0]["messages"] == [system, {"role": "user", "content": "First?"}]
    assert script.bodies[1]["messages"][2] == {"role": "assistant", "content": ANSWER}
    assert [body.get("temperature") for body in script.bodies] == [0, 0, None]
    assert (script.bodies[2]["top_p"], script.bodies[2]["max_tokens"]) == (0.9, 7)
    assert json.loads(saved.read_text(encoding="utf-8"))["messages"] == [
        *script.bodies[1]["messages"],
        {"role": "assistant", "content": ANSWER},
    ]
    assert done.stderr.count("prompt ") == 3
    assert done.stderr.count("first token") == 3


def test_what_the_console_cannot_write_ends_no_command() -> None:
    with serving(Script(words=("1 → 2",))) as address:
        done = talk(["--url", address], "Where?\nAnd then?\n", "cp1252")
    assert (done.returncode, done.stdout) == (0, "1 ? 2\n" * 2), done.stderr


def test_a_script_reads_answers_without_the_thoughts_before_them() -> None:
    with serving(Script(thoughts=("It is ", "Paris?"))) as address:
        done = talk(["--url", address], "Where?\n")
    assert done.stdout == f"{ANSWER}\n" and "It is Paris?\n" in done.stderr


def test_a_refusal_is_shown_and_the_question_may_be_asked_again() -> None:
    script = Script(["busy", "midstream"])
    with serving(script) as address:
        done = talk(["--url", address], "A?\nB?\nC?\n")
    assert done.returncode == 1
    assert "503: answer 503 Try again in 1 s." in done.stderr
    assert "the engine broke" in done.stderr
    assert done.stdout == f"Paris is\n{ANSWER}\n"
    assert [len(body["messages"]) for body in script.bodies] == [1, 1, 1]


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        ("/temp 3", "temperature must be at least 0 and at most 2"),
        ("/temp x", "temperature must be a number, not 'x'"),
        ("/temp nan", "temperature must be at least 0 and at most 2"),
        ("/max 0", "max_tokens must be at least 1"),
        ("/save", "/save needs a file name"),
        ("/what", "/what is no command"),
    ],
)
def test_commands_are_checked(command: str, complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    from server.commands.chat_terminal import Conversation, Terminal
    from server.commands.http_client import ServerClient

    with asyncio.Runner() as runner:
        client = ServerClient("http://127.0.0.1:9", "", "scripted", httpx.Timeout(1))
        terminal = Terminal(client, runner, Conversation(), Console(), Console(stderr=True, width=200))
        terminal.obey(command)
        runner.run(client.close())
    assert complaint in capsys.readouterr().err


def test_control_characters_of_a_model_do_not_reach_the_terminal() -> None:
    with serving(Script(words=("a\x1b[2Jb", "\x07\x9b31m", "\tc\r\nd", "é😀"))) as address:
        done = talk(["--url", address], "Hi\n")
    assert done.stdout == "a[2Jb31m\tc\ndé😀\n"


def test_nobody_listens() -> None:
    done = talk(["--url", "http://127.0.0.1:9"], "Hi\n")
    assert done.returncode == 1
    assert "nothing answers at http://127.0.0.1:9" in done.stderr
    assert "hexserve serve demo" in done.stderr
    assert "Traceback" not in done.stderr


def test_bytes_that_are_no_text_are_not_sent() -> None:
    """Latin-1 piped in: the line is named, the others are asked, the script hears of it by the exit code."""
    script = Script()
    with serving(script) as address:
        done = talk(["--url", address], "One?\ncaf\udce9?\n/system \udcff\nTwo?\n")
    assert done.returncode == 1
    assert done.stdout == f"{ANSWER}\n" * 2
    assert [len(body["messages"]) for body in script.bodies] == [1, 3]
    for line in (2, 3):
        assert f"line {line} is not utf-8, so it was not sent" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--url", "http://h", "demo"], "--url and NAME exclude each other"),
        (["--url", "ftp://h"], "'ftp://h' is not an http address"),
        (["--api-key", "ké"], "the API key must be printable ASCII characters"),
        (["--system", "\udcff"], "--system and --model must be text, without bytes that are no characters"),
    ],
)
def test_a_users_mistake_is_one_sentence(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["chat", *arguments])
    assert done.exit_code == 2
    assert done.stderr == f"error: {message}\n"


def test_timing_line() -> None:
    timing = Timing(10.0)
    assert timing.line() == "no text"
    timing.arrived(10.5)
    timing.arrived(12.5)
    assert timing.line() == "first token 500 ms"
    timing.usage = StreamedUsage(prompt=9, completion=5, cached=4)
    assert timing.line() == "5 tokens in 2.50 s, 2.0 tokens/s | first token 500 ms | prompt 9 (4 cached)"


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGINT")
def test_ctrl_c_ends_a_script() -> None:
    script = Script(then="hang")
    with serving(script) as address:
        command = [sys.executable, "-m", "server", "chat", "--url", address]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child:
            assert child.stdin is not None and child.stdout is not None and child.stderr is not None
            child.stdin.write("Hang?\n")
            child.stdin.close()
            assert child.stdout.read(len("Paris is")) == "Paris is"
            child.send_signal(signal.SIGINT)
            assert child.wait(30) == 130
            assert child.stderr.read() == ""
        assert script.left.wait(30)


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_ctrl_c_stops_the_answer_and_ctrl_d_leaves() -> None:
    import pty

    script = Script(["hang"])
    with serving(script) as address:
        terminal, end = pty.openpty()
        with subprocess.Popen(
            [sys.executable, "-m", "server", "chat", "--url", address],
            stdin=end,
            stdout=end,
            stderr=end,
            env={**os.environ, "TERM": "dumb"},
            start_new_session=True,
        ) as child:
            os.close(end)
            screen = read_until(terminal, "> ")
            os.write(terminal, b"Hang?\n")
            screen += read_until(terminal, "Paris is")
            os.kill(child.pid, signal.SIGINT)
            screen += read_until(terminal, "> ")
            assert script.left.wait(30)
            os.write(terminal, b"Again?\n")
            screen += read_until(terminal, "> ")
            os.write(terminal, b"\x04")
            assert child.wait(30) == 0
        os.close(terminal)
    assert "stopped" in screen
    assert ANSWER in screen
    assert script.bodies[1]["messages"][1] == {"role": "assistant", "content": "Paris is"}


def read_until(terminal: int, text: str) -> str:
    seen = b""
    while text.encode() not in seen:
        seen += os.read(terminal, 4096)
    return seen.decode()
