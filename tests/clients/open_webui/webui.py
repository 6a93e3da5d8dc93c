"""Open WebUI's own server on a loopback port, in a folder of its own, and its API as its page calls it."""

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from checking import base_url

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "clients" / "open-webui.md"
DOCUMENTED = "http://127.0.0.1:8000"
KEY = os.environ["OPENAI_API_KEY"]
USER = {"name": "Jo", "email": "jo@localhost.test", "password": "a-password-of-tests", "profile_image_url": ""}
START_S = 300
PATIENCE_S = 300
# Nothing is looked up outside; no title, tags or follow-up questions beside a chat.
ALONE = {
    "OFFLINE_MODE": "true",
    "HF_HUB_OFFLINE": "1",
    "ANONYMIZED_TELEMETRY": "false",
    "DO_NOT_TRACK": "true",
    "SCARF_NO_ANALYTICS": "true",
    "ENABLE_TITLE_GENERATION": "false",
    "ENABLE_TAGS_GENERATION": "false",
    "ENABLE_FOLLOW_UP_GENERATION": "false",
    "FROM_INIT_PY": "true",  # as its own command line says: the files of its page lie in the package
    "WEBUI_SECRET_KEY": "of-tests",
}


def documented(name: str, server: str) -> dict[str, str]:
    """The block of the page that sets `name`, its address replaced by that of a server of the tests."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    found = [dict(line.split("=", 1) for line in block.split()) for block in blocks]
    block = next(block for block in found if name in block)
    assert DOCUMENTED in block[name], block
    return {key: value.replace(DOCUMENTED, base_url(server).removesuffix("/v1")) for key, value in block.items()}


@dataclass(frozen=True)
class WebUi:
    """A running server and a user's token."""

    url: str
    token: str

    def get(self, path: str) -> Any:
        """The JSON of an answer that must be a success."""
        return self._json(httpx.get(f"{self.url}{path}", headers=self._headers, timeout=PATIENCE_S))

    def post(self, path: str, body: Any) -> Any:
        """The same of a POST."""
        return self._json(self.ask(path, body))

    def send(self, path: str, fields: Mapping[str, str], file: tuple[str, bytes, str]) -> Any:
        """The JSON of an answer to a form with a file: its name, content and type."""
        headers = self._headers
        answer = httpx.post(f"{self.url}{path}", data=fields, files={"file": file}, headers=headers, timeout=PATIENCE_S)
        return self._json(answer)

    def ask(self, path: str, body: Any) -> httpx.Response:
        """The whole answer to a POST."""
        return httpx.post(f"{self.url}{path}", json=body, headers=self._headers, timeout=PATIENCE_S)

    @contextmanager
    def streamed(self, body: Mapping[str, Any]) -> Iterator[Iterator[Any]]:
        """The chunks of a chat."""
        given = {**body, "stream": True}
        with httpx.stream(
            "POST", f"{self.url}/api/chat/completions", json=given, headers=self._headers, timeout=PATIENCE_S
        ) as answer:
            assert answer.status_code == 200, answer.read()
            lines = (line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: "))
            yield (json.loads(line) for line in lines if line != "[DONE]")

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def _json(self, answer: httpx.Response) -> Any:
        assert answer.status_code == 200, (answer.status_code, answer.text)
        return answer.json()


@contextmanager
def webui(variables: Mapping[str, str]) -> Iterator[WebUi]:
    """Start it with an empty data folder, sign up its first user, who is its administrator; end it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "uvicorn", "open_webui.main:app", "--host", "127.0.0.1", "--port", str(port)]
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+") as log:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("OPENAI_", "OLLAMA_", "PYTHON"))}
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**kept, **ALONE, "DATA_DIR": folder, "HOME": folder, **variables},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait(process, url, Path(folder) / "log")
            signed = httpx.post(f"{url}/api/v1/auths/signup", json=USER, timeout=PATIENCE_S)
            assert signed.status_code == 200, signed.text
            yield WebUi(url, signed.json()["token"])
        finally:
            process.terminate()
            process.wait(60)


def _wait(process: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and process.poll() is None:
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.2)  # nothing tells when another program listens
    raise AssertionError(f"Open WebUI did not start:\n{log.read_text()[-4000:]}")
