"""The app of a server with one model."""

from fastapi import FastAPI

from server import app
from server.engine_seam import EngineLike
from server.http.guard.keys import KeyRing
from server.http.in_flight import InFlight
from server.models.roster import Roster
from server.settings import Settings


def create_app(settings: Settings, engine: EngineLike, keys: KeyRing, in_flight: InFlight | None = None) -> FastAPI:
    return app.create_app(settings, Roster.of(engine, settings), keys, in_flight)
