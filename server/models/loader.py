"""Brings a bundle into memory: finds or compiles it, has its memory estimated, opens engines over it."""

import asyncio
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import msgspec

from engine.bundle.manifest import Manifest
from engine.client.engine import Engine
from engine.config import EngineConfig
from engine.errors import BundleError, EngineFailure, HexserveError
from engine.processes import child_environment, module_command
from engine.text.answer_finding import load_described

ESTIMATE_S = 120.0


class BundleLoader:
    """One model's way into memory. find: the settings with bundles for sources; blocks and may compile, BundleError.
    None: `config` is that. open_engine: an engine that has not been started. manifest: as far as it is known before."""

    def __init__(
        self,
        config: EngineConfig,
        find: Callable[[], EngineConfig] | None,
        open_engine: Callable[[EngineConfig], Engine],
        manifest: Manifest | None = None,
    ) -> None:
        self._config, self._find, self._open_engine = config, find, open_engine
        self._size: int | None = None
        self.prefixes = 0  # bytes of the size that only known prefixes take; 0 until it is estimated
        self.manifest = manifest

    def estimate(self) -> int:
        """The bytes that the loaded model will take at most. BundleError. Blocks; the first time a second or more."""
        if self._find is not None:
            self._config, self._find = self._find(), None
        manifest = load_described(Path(self._config.bundle))
        if self._size is None or manifest != self.manifest:  # the bundle may have been compiled anew meanwhile
            (self._size, self.prefixes), self.manifest = _estimated(self._config), manifest
        return self._size

    def open(self) -> Engine:
        return self._open_engine(self._config)


def _estimated(config: EngineConfig) -> tuple[int, int]:
    """All bytes, and those for prefixes. In a process of its own: what knows graphs is not loaded into the server."""
    command = module_command("engine.worker.estimate", msgspec.json.encode(config).decode())
    nothing, pipe = subprocess.DEVNULL, subprocess.PIPE
    try:
        done = subprocess.run(
            command, env=child_environment(), stdin=nothing, stdout=pipe, timeout=ESTIMATE_S, check=False
        )
        answer = msgspec.json.decode(done.stdout, type=dict[str, int | str])
    except (OSError, subprocess.TimeoutExpired, msgspec.MsgspecError) as error:
        raise BundleError(f"its memory cannot be estimated: {error}") from error
    size, prefixes = answer.get("bytes"), answer.get("prefixes")
    if not isinstance(size, int) or not isinstance(prefixes, int):
        raise BundleError(str(answer.get("error")))
    return size, prefixes


async def in_background(work: Callable[[], int]) -> int:
    """What `work` returns. Raises its HexserveError; any other exception is a bug, printed and told as EngineFailure.
    Cancelled, it returns at once and the thread goes on; what it comes to is dropped."""
    done: Future[int] = Future()
    done.set_running_or_notify_cancel()  # from now on nobody can cancel it

    def run() -> None:
        try:
            done.set_result(work())
        except HexserveError as error:
            done.set_exception(error)
        finally:
            if not done.done():
                done.set_exception(EngineFailure("its loading broke off; the log says where"))

    threading.Thread(target=run, name="hexserve-load", daemon=True).start()
    return await asyncio.wrap_future(done)
