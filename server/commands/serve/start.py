"""`hexserve serve`: bind, find the bundle, run."""

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from engine.adapters.named import named_adapters
from engine.bundle.manifest import load_manifest
from engine.client.engine import ClientLimits, Engine
from engine.config import EngineConfig
from engine.errors import BundleError, UnusableInput
from engine.files import expanded
from engine.isolation.helper_pool import HelperLimits
from engine.isolation.machine import usable_memory
from engine.sources.devices import bundles_for, devices_of, other_bundle
from engine.sources.resolve import cache_folder, models_in, resolve_bundle
from engine.sources.retention import LaterCompilations, in_use
from engine.text.answer_finding import load_described
from server.http.connections import bounded_connections
from server.logs import set_up_logging
from server.middleware.access_log import ACCESS_LOGGER
from server.middleware.auth import read_keys
from server.middleware.origins import is_loopback
from server.models.loader import BundleLoader
from server.models.manager import ManagerRules, ModelManager
from server.models.models import Models, ServedModel
from server.observability.tracing import Layer
from server.run import bind, run, serve
from server.settings import Settings, listed
from server.signals import unwinding
from server.stored_responses.database import StorageBounds
from server.stored_responses.store import ResponseStore, data_folder

OpenEngine = Callable[[EngineConfig, ClientLimits, str], Engine]  # the last one: the label of its log lines
_NAMED = re.compile(r"(?![^=]*://)([A-Za-z0-9][A-Za-z0-9._:/-]{0,127})=(.+)", re.ASCII)
MACHINE_SHARE = 0.75  # of its memory, for all models; the system and everybody else have the rest
_log = logging.getLogger("hexserve")


@dataclass(frozen=True, slots=True)
class ModelSource:
    """name: "" = the bundle's own, known once it is found. is_eager: found, and compiled if need be, at the start."""

    name: str
    source: str
    is_eager: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """settings: of the server. remarks: what shall be told. count: of models. make: to be called on the event loop."""

    settings: Settings
    remarks: tuple[str, ...]
    count: int
    make: Callable[[], Models]


def prepare(settings: Settings, cache: Path, open_engine: OpenEngine, held: ExitStack) -> Prepared:
    """What is to be served, compiled if need be. BundleError. held: keeps bundles in the cache until it is closed."""
    settings = with_name(settings)
    if settings.more_models or settings.models_dir or settings.idle_unload_s:  # models come and go
        return _several(settings, cache, open_engine, held)
    devices = devices_of(settings.engine.devices, settings.model_name)
    settings = replace(settings, engine=replace(settings.engine, devices=devices))
    own = _resolved(settings, cache, held)
    return Prepared(own, (), 1, lambda: Models([ServedModel(own, engine=open_engine(own.engine, limits_of(own), ""))]))


def _several(settings: Settings, cache: Path, open_engine: OpenEngine, held: ExitStack) -> Prepared:
    sources, told = model_sources(settings)
    models: list[ServedModel] = []
    for number, source in enumerate(sources):
        own = settings
        if number:  # what of the settings belongs to the first model is not said of the others
            own = replace(own, model_name="", engine=replace(own.engine, draft="", lora="", kv_file=""))
        devices = devices_of(settings.engine.devices, source.name, [each.name for each in sources])
        own = replace(own, engine=replace(own.engine, bundle=source.source, devices=devices))
        models.append(_served(source, own, cache, open_engine, held))
    check_names([(model.name, model.settings.engine.bundle) for model in models], settings)
    budget = settings.models_memory_mb * 1024**2 or int(MACHINE_SHARE * usable_memory())
    rules = ManagerRules(budget, settings.idle_unload_s, preloads=len(models) == 1 and not settings.models_dir)
    return Prepared(settings, tuple(told), len(models), lambda: ModelManager(models, rules))


def _served(
    source: ModelSource, settings: Settings, cache: Path, open_engine: OpenEngine, held: ExitStack
) -> ServedModel:
    name, manifest = source.name, None
    if source.is_eager:
        settings = _resolved(settings, cache, held)
        manifest = load_described(Path(settings.engine.bundle))
        name = name or manifest.name
    else:
        other_bundle(settings.engine.devices, cache)  # what names nothing is refused now
    served = ServedModel(replace(settings, model_name=name))

    def find() -> EngineConfig:
        served.settings = _resolved(served.settings, cache, held)
        return served.settings.engine

    def opened(config: EngineConfig) -> Engine:
        return open_engine(config, limits_of(settings), name)

    served.loader = BundleLoader(served.settings.engine, None if manifest else find, opened, manifest)
    return served


def _resolved(settings: Settings, cache: Path, held: ExitStack) -> Settings:
    """The settings with bundle folders for what they name. BundleError."""
    later, engine = held.enter_context(LaterCompilations()), settings.engine
    resolve = partial(resolve_bundle, engine.bundle, cache, lora=bool(engine.lora), later=later)
    alone = [name for name in ("lora", "draft", "kv_file") if getattr(engine, name)]
    found = bundles_for(engine.devices, engine.bundle, cache, resolve, later, alone)
    for folder in filter(None, found):
        held.enter_context(in_use(folder, cache))
    draft = None
    if engine.draft:
        load_manifest(found[0])  # what is wrong with it is told before a draft is fetched
        draft = resolve_bundle(engine.draft, cache)
        held.enter_context(in_use(draft, cache))
    return settings.with_bundle(found[0], cache, draft, found[1])


def named(text: str) -> tuple[str, str]:
    """Name and source of NAME=SOURCE; the name is "" where none was given. What exists is a source as it is."""
    with suppress(OSError):  # nobody can look, or it is too long for a path
        if Path(text).exists():
            return "", text
    parts = _NAMED.fullmatch(text)
    return (parts[1], parts[2]) if parts else ("", text)


def with_name(settings: Settings) -> Settings:
    """The settings whose bundle is a source alone: NAME of NAME=SOURCE is their `model_name`. BundleError."""
    name, source = named(settings.engine.bundle)
    if not name:
        return settings
    if settings.model_name not in ("", name):
        raise BundleError(f"the model is called {name} and model_name is {settings.model_name}: give one of them")
    check_names([(name, source)], settings)
    return replace(settings, model_name=name, engine=replace(settings.engine, bundle=source))


def model_sources(settings: Settings) -> tuple[list[ModelSource], list[str]]:
    """All models in order, and sentences on what is not served. BundleError when nothing is left."""
    found: list[ModelSource] = []
    problems: list[str] = []
    if settings.engine.bundle:
        found.append(ModelSource(settings.model_name, settings.engine.bundle, is_eager=True))
    elif settings.model_name:
        raise BundleError(f"model_name is {settings.model_name}, but models of models_dir are called as their files")
    found += [ModelSource(*named(text), is_eager=True) for text in listed(settings.more_models)]
    if settings.models_dir:
        inside, problems = models_in(expanded(settings.models_dir))
        found += [ModelSource(model.name, str(model.path), model.is_bundle) for model in inside]
    if not found:
        raise BundleError(f"{settings.models_dir} holds no model")
    return found, problems


def check_names(names: Iterable[tuple[str, str]], settings: Settings) -> None:
    """BundleError when two models, or a model and an adapter, are called the same. names: name and source of each."""
    taken = {name: f"the adapter {name}" for name in named_adapters(settings.engine.lora)}
    for name, source in names:
        if name in taken:
            both = f"{taken[name]} and {source}"
            raise BundleError(f"two models are called {name}: {both}; NAME=SOURCE gives another name")
        taken[name] = source


def opened_engine(config: EngineConfig, limits: ClientLimits, label: str) -> Engine:
    return Engine(config, limits, label=label)


def limits_of(settings: Settings) -> ClientLimits:
    helpers = HelperLimits(settings.prepare_timeout_s)
    return ClientLimits(settings.max_queued, settings.max_queued_tokens, helpers=helpers)


def start(settings: Settings, open_engine: OpenEngine = opened_engine, layers: Sequence[Layer] = ()) -> int:
    """Serve until told to stop; the exit code. Keys are read and the port is taken first: a compilation may follow.
    UnusableInput, BundleError."""
    keys = read_keys(settings.api_keys, settings.api_key_file)
    try:
        listener = bind(settings.host, settings.port)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while ")[0]  # create_server appends the address
        raise UnusableInput(f"cannot listen on {settings.host} port {settings.port}: {reason}") from None
    with listener, ExitStack() as held:
        store = held.enter_context(opened_store(settings))
        cache = cache_folder(settings.cache_dir)
        with unwinding():
            prepared = prepare(settings, cache, open_engine, held)
        found = prepared.settings
        set_up_logging(found.engine.log_level, ACCESS_LOGGER if found.access_log == "json" else "")
        for remark in prepared.remarks:
            _log.warning("%s", remark)
        if not (len(keys) or is_loopback(settings.host)):
            _log.warning("no API keys are set: everyone who can reach %s may use this server", settings.host)
        processes = limits_of(found).helpers.processes
        most = bounded_connections(2 * 2 * processes * prepared.count)  # pipes for templates and for forms
        return run(lambda: serve(found, keys, prepared.make(), listener, store, layers, most, is_last=True))


def opened_store(settings: Settings) -> AbstractContextManager[ResponseStore | None]:
    """The store of responses, None when nothing is to be stored. UnusableInput."""
    if not settings.store_responses:
        return nullcontext()
    return closing(ResponseStore(data_folder(settings.data_dir), StorageBounds()))
