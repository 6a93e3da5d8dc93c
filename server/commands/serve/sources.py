"""Which models the settings name, under which names, before any is compiled or loaded."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from engine.adapters.named import named_adapters
from engine.errors import BundleError
from engine.sources.listing import models_in
from server.settings import Settings, listed

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._:/-]{0,127})=(.+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """name: "" = the bundle's own, known once it is found. is_eager: found, and compiled if need be, at the start."""

    name: str
    source: str
    is_eager: bool


def has_roster(settings: Settings) -> bool:
    """Whether models come and go; otherwise there is one, loaded from the start to the end."""
    return bool(settings.more_models or settings.models_dir or settings.lazy or settings.idle_unload_s)


def named(text: str) -> tuple[str, str]:
    """Name and source of NAME=SOURCE; the name is "" where none was given. What exists is a source as it is."""
    parts = None if Path(text).exists() else _NAMED.fullmatch(text)
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
    for text in listed(settings.more_models):
        name, source = named(text)
        found.append(ModelSource(name, source, is_eager=True))
    if settings.models_dir:
        inside, problems = models_in(Path(settings.models_dir).expanduser())
        found += [ModelSource(model.name, str(model.path), model.is_bundle) for model in inside]
    if not found:
        raise BundleError(f"{settings.models_dir} holds no model")
    return found, problems


def check_names(names: Iterable[tuple[str, str]], settings: Settings) -> None:
    """BundleError when two models, or a model and an adapter, are called the same. names: name and source of each."""
    taken = {name: f"the adapter {name}" for name in named_adapters(settings.engine.lora)}
    for name, source in names:
        if name in taken:
            raise BundleError(
                f"two models are called {name}: {taken[name]} and {source}; NAME=SOURCE gives another name"
            )
        taken[name] = source
