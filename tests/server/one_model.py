"""The app of a server with one model."""

from collections.abc import Sequence

from fastapi import FastAPI

from engine.client.engine import Engine
from engine.config import EngineConfig
from server import app
from server.api.openai.response_runs import StoredResponses
from server.http.in_flight import InFlight
from server.middleware.auth import KeyRing
from server.models.families import ModelCollector
from server.models.models import Models, ServedModel
from server.observability.metrics import Metrics
from server.observability.tracing import Layer
from server.settings import Settings


def one_model(engine: Engine, settings: Settings | None = None) -> Models:
    return Models([ServedModel(settings or Settings(EngineConfig("unused")), engine=engine)])


def create_app(
    settings: Settings,
    engine: Engine,
    keys: KeyRing,
    in_flight: InFlight | None = None,
    stored: StoredResponses | None = None,
    layers: Sequence[Layer] = (),
) -> FastAPI:
    return app.create_app(settings, one_model(engine, settings), keys, in_flight, stored, layers)


def metrics_of(engine: Engine) -> Metrics:
    return Metrics(ModelCollector(one_model(engine)))
