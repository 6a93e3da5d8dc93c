"""Everything of `hexserve serve` that happens before a worker starts: find bundles, compile, settle names."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from engine.bundle.manifest import Manifest, load_manifest
from engine.client.engine import ClientLimits
from engine.config import EngineConfig
from engine.errors import BundleError
from engine.isolation.memory import usable_memory
from engine.sources.paced import paced_folder, published_as
from engine.sources.resolve import resolve_bundle
from engine.sources.retention import in_use
from engine.text.answer_probing import load_described
from server.commands.serve.denoising import remarks
from server.commands.serve.sources import ModelSource, check_names, has_roster, model_sources, with_name
from server.engine_seam import EngineLike
from server.models.loader import BundleLoader
from server.models.models import Models
from server.models.one_model import OneModel
from server.models.roster import Roster, RosterRules
from server.models.served_model import ServedModel
from server.settings import Settings

OpenEngine = Callable[[EngineConfig, ClientLimits, str], EngineLike]  # the last one: the label of its log lines
MACHINE_SHARE = 0.75  # of its memory, for all models; the system and everybody else have the rest


@dataclass(frozen=True, slots=True)
class Prepared:
    """settings: of the server. remarks: what shall be told. count: of models. make: to be called on the event loop."""

    settings: Settings
    remarks: tuple[str, ...]
    count: int
    make: Callable[[ClientLimits], Models]


def prepare(settings: Settings, cache: Path, open_engine: OpenEngine, held: ExitStack) -> Prepared:
    """Find what is to be served, compiling what was named and is no bundle. BundleError.

    held: keeps the bundles in the cache from being removed until it is closed.
    """
    settings = with_name(settings)
    if has_roster(settings):
        return _several(settings, cache, open_engine, held)
    folder = _found(settings, cache, held)
    own = _resolved(settings, folder, cache, held)
    told = tuple(remarks(load_manifest(folder).diffusion, settings))
    return Prepared(own, told, 1, lambda limits: OneModel(own, open_engine(own.engine, limits, "")))


def _several(settings: Settings, cache: Path, open_engine: OpenEngine, held: ExitStack) -> Prepared:
    sources, told = model_sources(settings)
    if settings.engine.paced and len(sources) > 1:
        raise BundleError("paced: the pace of one model says nothing of another; serve one")
    models: list[_Found] = []
    for number, source in enumerate(sources):
        own = settings if number == 0 else _of_another(settings)
        own = replace(own, engine=replace(own.engine, bundle=source.source))
        models.append(_find(source, own, cache, held))
    check_names([(model.name, model.settings.engine.bundle) for model in models], settings)
    for model in models:
        if model.manifest is not None:
            told += [f"{model.name}: {remark}" for remark in remarks(model.manifest.diffusion, settings)]
    rules = RosterRules(
        budget=settings.models_memory_mb * 1024**2 or int(MACHINE_SHARE * usable_memory()),
        idle_s=settings.idle_unload_s,
        load_wait_s=settings.load_wait_s,
        preloads=len(models) == 1 and not (settings.lazy or settings.models_dir),
    )

    def make(limits: ClientLimits) -> Models:
        def opened(config: EngineConfig, name: str) -> EngineLike:
            return open_engine(config, limits, name)

        return Roster([_served(model, cache, held, partial(opened, name=model.name)) for model in models], rules)

    return Prepared(settings, tuple(told), len(models), make)


def _of_another(settings: Settings) -> Settings:
    """What of the settings belongs to the first model is not said of the others."""
    engine = replace(settings.engine, draft="", lora="", kv_file="")
    return replace(settings, model_name="", engine=engine)


@dataclass(frozen=True, slots=True)
class _Found:
    """manifest: None for what is compiled at its first use."""

    name: str
    settings: Settings
    manifest: Manifest | None


def _find(source: ModelSource, settings: Settings, cache: Path, held: ExitStack) -> _Found:
    if not source.is_eager:
        return _Found(source.name, settings.with_bundle(Path(source.source), cache), None)
    folder = _found(settings, cache, held)
    manifest = load_described(folder)
    return _Found(source.name or manifest.name, _resolved(settings, folder, cache, held), manifest)


def _served(
    model: _Found, cache: Path, held: ExitStack, open_engine: Callable[[EngineConfig], EngineLike]
) -> ServedModel:
    own = replace(model.settings, model_name=model.name)

    def find() -> Path:
        folder = resolve_bundle(own.engine.bundle, cache)
        held.enter_context(in_use(folder, cache))
        return folder

    return ServedModel(own, BundleLoader(own.engine, None if model.manifest else find, open_engine, model.manifest))


def _found(settings: Settings, cache: Path, held: ExitStack) -> Path:
    """The bundle folder of the settings, of a paced server one that may have no graphs. BundleError."""
    engine = settings.engine
    if engine.paced:
        published_as(engine.paced)  # a wrong name must not cost a compilation
        folder = paced_folder(engine.paced, engine.bundle, resolve_bundle(engine.bundle, cache), cache)
    else:
        folder = resolve_bundle(engine.bundle, cache, lora=bool(engine.lora))
    held.enter_context(in_use(folder, cache))
    return folder


def _resolved(settings: Settings, folder: Path, cache: Path, held: ExitStack) -> Settings:
    """The settings with folders for sources."""
    draft = resolve_bundle(settings.engine.draft, cache) if settings.engine.draft else None
    if draft is not None:
        held.enter_context(in_use(draft, cache))
    return settings.with_bundle(folder, cache, draft)
