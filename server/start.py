"""`hexserve serve`: bind, find the bundle, run."""

import sys
from pathlib import Path

from engine.bundle.resolve import default_cache, resolve_bundle
from engine.client import ClientLimits, Engine
from engine.errors import BundleError
from server.logs import set_up_logging
from server.run import UNUSABLE, bind, run
from server.settings import Settings


def start(settings: Settings) -> int:
    """Serve until told to stop; the exit code. The port is taken first: a compilation may follow."""
    set_up_logging(settings.log_level)
    try:
        listener = bind(settings.host, settings.port)
    except OSError as error:
        reason = error.strerror or error
        print(f"error: cannot listen on {settings.host} port {settings.port}: {reason}", file=sys.stderr)
        return UNUSABLE
    cache = Path(settings.cache_dir).expanduser() if settings.cache_dir else default_cache()
    with listener:
        try:
            found = settings.with_bundle(resolve_bundle(settings.engine.bundle, cache), cache)
        except BundleError as error:
            print(f"error: {error}", file=sys.stderr)
            return UNUSABLE
        limits = ClientLimits(found.max_queued, found.max_queued_tokens, found.stream_buffer)
        return run(found, lambda: Engine(found.engine, limits), listener)
