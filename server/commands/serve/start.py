"""`hexserve serve`: bind, find the bundle, run."""

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from engine.bundle.manifest import load_manifest
from engine.client.engine import ClientLimits, Engine
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.grammar.compiler_pool import GrammarCompilerLimits
from engine.isolation.helper_pool import HelperLimits
from engine.sources.paced import paced_folder, published_as
from engine.sources.resolve import cache_folder, resolve_bundle
from engine.sources.retention import in_use
from server.commands.serve.denoising import remarks
from server.engine_seam import EngineLike
from server.http.guard.hosts import is_loopback
from server.http.guard.keys import KeyFileError, read_keys
from server.http.open_files import bound_connections
from server.logs import set_up_logging
from server.models.roster import Roster
from server.run import UNUSABLE, bind, run
from server.settings import Settings
from server.signals import unwinding

_log = logging.getLogger("hexserve")


MakeEngine = Callable[[EngineConfig, ClientLimits], EngineLike]


def start(settings: Settings, make_engine: MakeEngine = Engine) -> int:
    """Serve until told to stop; the exit code. Keys are read and the port is taken first: a compilation may follow."""
    try:
        keys = read_keys(settings.api_keys, settings.api_key_file)
    except KeyFileError as error:
        print(f"error: {error}", file=sys.stderr)
        return UNUSABLE
    try:
        listener = bind(settings.host, settings.port)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while ")[0]  # create_server appends the address
        print(f"error: cannot listen on {settings.host} port {settings.port}: {reason}", file=sys.stderr)
        return UNUSABLE
    with listener:
        try:
            cache = cache_folder(settings.cache_dir)
            with unwinding():
                folder = _resolve(settings.engine, cache)
                draft = resolve_bundle(settings.engine.draft, cache) if settings.engine.draft else None
            unhonoured = tuple(remarks(load_manifest(folder).diffusion, settings))
        except BundleError as error:
            print(f"error: {error}", file=sys.stderr)
            return UNUSABLE
        found = settings.with_bundle(folder, cache, draft)
        set_up_logging(found.log_level)
        for remark in unhonoured:
            _log.warning("%s", remark)
        if found.engine.paced:
            _log.warning("PACED %s: nothing is computed, every answer is noise", found.engine.paced)
        if not (len(keys) or is_loopback(settings.host)):
            _log.warning("no API keys are set: everyone who can reach %s may use this server", settings.host)
        limits = _client_limits(found)
        pipes = 2 * (limits.grammars.compilers + limits.templates.processes)
        found = replace(found, max_connections=bound_connections(found.max_connections, pipes))
        with in_use(folder, cache), in_use(draft or folder, cache):
            return run(found, keys, lambda: Roster.of(make_engine(found.engine, limits), found), listener)


def _resolve(engine: EngineConfig, cache: Path) -> Path:
    """The bundle folder, of a paced server one that may have no graphs. BundleError."""
    if not engine.paced:
        return resolve_bundle(engine.bundle, cache, lora=bool(engine.lora))
    published_as(engine.paced)  # a wrong name must not cost a compilation
    return paced_folder(engine.paced, engine.bundle, resolve_bundle(engine.bundle, cache), cache)


def _client_limits(settings: Settings) -> ClientLimits:
    return ClientLimits(
        settings.max_queued,
        settings.max_queued_tokens,
        settings.stream_buffer,
        GrammarCompilerLimits(settings.grammar_timeout_s, settings.grammar_limit_bytes, settings.grammar_compilers),
        HelperLimits(settings.template_timeout_s),
        settings.denoising,
    )
