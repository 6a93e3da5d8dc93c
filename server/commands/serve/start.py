"""`hexserve serve`: bind, find the bundle, run."""

import logging
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from engine.client.engine import ClientLimits, Engine
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.grammar.compiler_pool import GrammarCompilerLimits
from engine.isolation.helper_pool import HelperLimits
from engine.sources.resolve import cache_folder
from server.commands.serve.prepare import OpenEngine, prepare
from server.commands.serve.storage import opened_store
from server.http.access_record import ACCESS_LOGGER
from server.http.guard.hosts import is_loopback
from server.http.guard.keys import KeyFileError, read_keys
from server.http.open_files import bound_connections
from server.logs import set_up_logging
from server.run import UNUSABLE, bind, run
from server.settings import Settings
from server.signals import unwinding
from server.stored.folder import DataFolderError
from server.tracing.wanted import Layer

_log = logging.getLogger("hexserve")


def opened_engine(config: EngineConfig, limits: ClientLimits, label: str) -> Engine:
    """The engine that serves. label: of its log lines."""
    return Engine(config, limits, label=label)


def start(settings: Settings, open_engine: OpenEngine = opened_engine, layers: Sequence[Layer] = ()) -> int:
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
    with listener, ExitStack() as held:
        try:
            store = held.enter_context(opened_store(settings))
            cache = cache_folder(settings.cache_dir)
            with unwinding():
                prepared = prepare(settings, cache, open_engine, held)
        except (BundleError, DataFolderError) as error:
            print(f"error: {error}", file=sys.stderr)
            return UNUSABLE
        found = prepared.settings
        set_up_logging(found.log_level, ACCESS_LOGGER if found.access_log_format == "json" else "")
        for remark in prepared.remarks:
            _log.warning("%s", remark)
        if found.engine.paced:
            _log.warning("PACED %s: nothing is computed, every answer is noise", found.engine.paced)
        if not (len(keys) or is_loopback(settings.host)):
            _log.warning("no API keys are set: everyone who can reach %s may use this server", settings.host)
        limits = _client_limits(found)
        pipes = 2 * (limits.grammars.compilers + limits.templates.processes) * prepared.count
        found = replace(found, max_connections=bound_connections(found.max_connections, pipes))
        return run(found, keys, lambda: prepared.make(limits), listener, store, layers)


def _client_limits(settings: Settings) -> ClientLimits:
    return ClientLimits(
        settings.max_queued,
        settings.max_queued_tokens,
        settings.stream_buffer,
        GrammarCompilerLimits(settings.grammar_timeout_s, settings.grammar_limit_bytes, settings.grammar_compilers),
        HelperLimits(settings.template_timeout_s),
        settings.denoising,
    )
