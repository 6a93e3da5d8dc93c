"""The app of a server with one model."""

from collections.abc import Sequence

from fastapi import FastAPI

from engine.config import EngineConfig
from server import app
from server.engine_seam import EngineLike
from server.http.guard.keys import KeyRing
from server.http.in_flight import InFlight
from server.http.metrics import Metrics
from server.models.one_model import OneModel
from server.settings import Settings
from server.stored.responses import StoredResponses
from server.tracing.wanted import Layer


def create_app(
    settings: Settings,
    engine: EngineLike,
    keys: KeyRing,
    in_flight: InFlight | None = None,
    stored: StoredResponses | None = None,
    layers: Sequence[Layer] = (),
) -> FastAPI:
    return app.create_app(settings, OneModel(settings, engine), keys, in_flight, stored, layers)


def metrics_of(engine: EngineLike) -> Metrics:
    return Metrics(OneModel(Settings(EngineConfig("unused")), engine))
