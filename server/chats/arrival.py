"""A request in Ollama's format and its model: found by its name with or without tag, loaded, and kept as it says."""

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request

from engine.bundle.manifest import Manifest
from server.models.models import find
from server.requests.ollama.keep_alive import kept_s
from server.requests.ollama.names import served_name
from server.service import Service, any_model, server_of, take_model
from server.writers.ollama.timing import Clock, Stopwatch


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request whose model is there, and what its waiting took."""

    service: Service
    stopwatch: Stopwatch


async def arrived(
    request: Request,
    model: str,
    keep_alive: float | str | None,
    check: Callable[[Manifest], object] = any_model,
) -> Arrival:
    """Wait until the model is there, and say how long it stays without another request. Raises as `take_model`."""
    clock = Clock()
    came_ns = clock.monotonic_ns()
    keep_s = kept_s(keep_alive)
    models = server_of(request).models.models
    name = served_name(models, model)
    service = await take_model(request, name, check)
    find(models, name).keep_s = keep_s
    return Arrival(service, Stopwatch(clock, came_ns, clock.monotonic_ns()))


async def dismissed(request: Request, model: str) -> None:
    """Unload a model: at once, or when the requests that use it have ended. Refusal for one that always stays."""
    models = server_of(request).models
    named = find(models.models, served_name(models.models, model))
    if named.comes_and_goes and named.pins:
        named.keep_s = 0.0
    else:
        await models.unload(named)
