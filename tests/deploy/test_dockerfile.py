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
COMMANDS = [command.strip() for run in BUILDER.all("RUN") for command in run.split("&&")]
INSTALLS = {
    "/opt/compiler": [run for run in COMMANDS if run.startswith("/opt/compiler/bin/pip install ")],
    "/opt/hexserve": [run for run in COMMANDS if "pip --python /opt/hexserve/bin/python install " in run],
}
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
    installs = INSTALLS["/opt/hexserve"]
    assert len(installs) == 2
    assert not any("[" in install for install in installs), "no extra but by a lock of its own"
    assert not re.search(r"\b(torch|onnx|dev|bench)\b", " ".join(installs))
    locked = (ROOT / "deploy/locks/serve.txt").read_text(encoding="utf-8")
    assert not re.search(r"^(torch|onnx|safetensors|openai|locust|pytest|pip|setuptools)==", locked, re.MULTILINE)


def test_everything_from_an_index_is_locked() -> None:
    """What has no hash is the wheel that the builder made itself, without dependencies."""
    for place, installs in INSTALLS.items():
        locked, own = installs
        assert "--require-hashes -r" in locked, place
        assert re.search(r"--no-deps /wheels/hexserve-\*\.whl$", own), place
    (made,) = [run for run in COMMANDS if " wheel " in run]
    assert "--no-deps --no-build-isolation" in made


def test_the_extra_is_a_lock_that_exists() -> None:
    assert BUILDER.all("ARG") == ["EXTRAS="]
    locked = INSTALLS["/opt/hexserve"][0].split()[-1].strip('"')
    assert locked == "deploy/locks/${EXTRAS:-serve}.txt"
    for lock in ("serve", "qnn", "compile"):
        assert (ROOT / f"deploy/locks/{lock}.txt").is_file()
    assert INSTALLS["/opt/compiler"][0].endswith(" deploy/locks/compile.txt")


def test_it_has_neither_pip_nor_byte_code_of_everything() -> None:
    assert "python -m venv --without-pip /opt/hexserve" in COMMANDS
    assert all("--no-compile" in install for install in INSTALLS["/opt/hexserve"])
    assert COMMANDS[-1].endswith("deploy/first_run.py /opt/hexserve/bin/hexserve /bundle")


def test_no_process_of_it_sends_telemetry() -> None:
    for stage in (BUILDER, FINAL):
        assert "ORT_DISABLE_TELEMETRY=1" in stage.last("ENV")


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
