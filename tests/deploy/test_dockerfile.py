"""The Dockerfile, read rather than run: no docker is needed, but every promise it makes can be checked."""

import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from server.settings import options
from tests.deploy.dockerfile_reader import read_dockerfile

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
BUILDER, FINAL = read_dockerfile(TEXT)
ENVIRONMENT = dict(re.findall(r"(\w+)=(\S+)", FINAL.last("ENV")))


def test_two_stages_on_the_same_slim_python() -> None:
    assert BUILDER.name == "builder"
    assert BUILDER.base == FINAL.base == "python:${PYTHON_VERSION}-slim"
    version = re.search(r"^ARG PYTHON_VERSION=(\d+)\.(\d+)$", TEXT, re.MULTILINE)
    assert version
    assert tuple(map(int, version.groups())) >= (3, 11)


def test_the_final_stage_installs_nothing() -> None:
    assert FINAL.all("RUN") == []
    assert FINAL.all("COPY") == ["--from=builder /opt/hexserve /opt/hexserve", "--from=builder /bundle /bundle"]
    installs = [run for run in BUILDER.all("RUN") if "/opt/hexserve/bin/pip install" in run]
    assert len(installs) == 1
    assert "[" not in installs[0], "no extra may reach the final stage"
    assert not re.search(r"\b(torch|onnx|dev|bench)\b", installs[0])


def test_what_it_copies_exists_and_is_sent_to_the_builder() -> None:
    sources = [source for copy in BUILDER.all("COPY") for source in copy.split()[:-1]]
    rules = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert sorted(sources) == sorted(rule[1:] for rule in rules if rule.startswith("!"))
    assert "*" in rules
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if tracked.returncode != 0:
        pytest.skip("not a git checkout")
    files = tracked.stdout.splitlines()
    for source in sources:
        assert any(file == source or file.startswith(f"{source}/") for file in files), f"{source} is not in git"


def test_nothing_depends_on_the_architecture() -> None:
    for stage in (BUILDER, FINAL):
        for kind, argument in stage.instructions:
            assert not re.search(r"amd64|arm64|aarch64|x86_64|--platform", argument), (kind, argument)


def test_it_runs_as_nobody_in_particular() -> None:
    user, group = FINAL.last("USER").split(":")
    assert int(user) > 0
    assert int(group) > 0
    kinds = [kind for kind, _ in FINAL.instructions]
    assert kinds.index("USER") > max(place for place, kind in enumerate(kinds) if kind == "COPY")


def test_settings_are_known_and_point_at_what_is_there() -> None:
    known = {option.variable for option in options()}
    given = {name: value for name, value in ENVIRONMENT.items() if name.startswith("HEXSERVE_")}
    assert set(given) <= known
    assert given["HEXSERVE_BUNDLE"] == "/bundle"
    assert given["HEXSERVE_HOST"] == "0.0.0.0"
    assert given["HEXSERVE_PORT"] == FINAL.last("EXPOSE")
    assert given["HEXSERVE_CACHE_DIR"].startswith("/tmp/")
    assert json.loads(FINAL.last("ENTRYPOINT")) + json.loads(FINAL.last("CMD")) == ["hexserve", "serve"]
    assert FINAL.last("STOPSIGNAL") == "SIGTERM"


def test_labels() -> None:
    labels = dict(re.findall(r'([\w.]+)="([^"]*)"', FINAL.last("LABEL")))
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert labels["org.opencontainers.image.title"] == "hexserve"


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_health_check_asks_health_live(status: int, code: int) -> None:
    asked = []

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    command = json.loads(FINAL.last("HEALTHCHECK").partition("CMD ")[2])
    assert command[0] == "python"
    with HTTPServer(("127.0.0.1", 0), Health) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        environment = {**os.environ, "HEXSERVE_PORT": str(server.server_port)}
        done = subprocess.run([sys.executable, *command[1:]], env=environment, capture_output=True, check=False)
        thread.join()
    assert done.returncode == code, done.stderr
    assert asked == ["/health/live"]
