"""Live servers for clients: each starts when it is first asked for and runs until the end of the session."""

import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from threading import Lock

from tests.clients.scripted_bundle import KINDS
from tests.live import LiveServer, serving, watching

ROOT = Path(__file__).parents[2]
KEY = "sk-tests-of-clients"
SCRIPTED_MODEL = "scripted"
# Kind of bundle and settings of each scripted server. `limited`: a second request within the minute is one too many.
SCRIPTED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "scripted": ("hermes", ("--prepare-timeout-s", "60")),
    "limited": ("hermes", ("--requests-per-minute", "1")),
    "brief": ("hermes", ("--request-timeout-s", "3")),
    # One request runs at a time; who waits is sent comments.
    "narrow": ("hermes", ("--max-running", "1", "--keep-alive-s", "0.1")),
    "full": ("hermes", ("--max-queued", "1")),
    "stored": ("hermes", ("--prepare-timeout-s", "60", "--store-responses", "true", "--data-dir", "{folder}")),
    **{kind: (kind, ("--prepare-timeout-s", "60")) for kind in KINDS if kind != "hermes"},
}
# The embedded model, and twice on one server, where models come and go.
DEMO: Mapping[str, tuple[str, ...]] = {
    "demo": ("--bundle", "demo"),
    "several": ("demo", "second=demo"),
    "sees": ("--bundle", "demo-vision"),
}


class Servers:
    """Running servers by name: those of `SCRIPTED` and of `DEMO`, `embeds`, which makes embeddings, `reranker`, and
    `hears`, a small random Whisper."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._running: dict[str, LiveServer] = {}
        self._writing = Lock()  # transformers cannot be imported by two threads at once

    def __call__(self, name: str) -> LiveServer:
        """A server, started if need be."""
        if name not in self._running:
            self._running[name] = self._stack.enter_context(self._started(name))
        return self._running[name]

    def variables(self, names: tuple[str, ...]) -> dict[str, str]:
        """What a client is told about servers; `scripted` is the one that OPENAI_BASE_URL names."""
        with ThreadPoolExecutor() as starting:
            wanted = tuple(dict.fromkeys(("scripted", *names)))
            urls = {name: f"{live.url}/v1" for name, live in zip(wanted, starting.map(self, wanted), strict=True)}
        found = {f"{name.upper()}_URL": url for name, url in urls.items()}
        return found | {
            "OPENAI_BASE_URL": urls["scripted"],
            "OPENAI_API_BASE": urls["scripted"],
            "OPENAI_API_KEY": KEY,
            "OLLAMA_API_KEY": KEY,
            "OPENAI_MODEL": SCRIPTED_MODEL,
        }

    def close(self) -> None:
        """Stop all."""
        self._stack.close()

    def _started(self, name: str) -> AbstractContextManager[LiveServer]:
        if name in ("embeds", "reranker", "hears"):
            with self._writing:
                return self._written(name)
        return serving(*DEMO[name]) if name in DEMO else self._scripted(name)

    def _written(self, name: str) -> AbstractContextManager[LiveServer]:
        """Of a model that is made here."""
        if name == "hears":
            from tests.tiny_whisper import write_ctranslate2

            source = write_ctranslate2(self._folder / name / "tiny-whisper")
            return serving(str(source), cache=self._folder / name / "cache")
        from tests.embedders import compiled

        return serving("--bundle", str(compiled("embedder" if name == "embeds" else name, self._folder)))

    def _scripted(self, name: str) -> AbstractContextManager[LiveServer]:
        kind, flags = SCRIPTED[name]
        command = [sys.executable, "-m", "tests.clients.scripted", kind, str(self._folder / name)]
        command += ["--port", "0", "--model-name", SCRIPTED_MODEL, *flags]
        command = [word.format(folder=self._folder / f"{name}-data") for word in command]
        return watching(command, os.environ | {"HEXSERVE_API_KEYS": f"tests:{KEY}"}, ROOT)
