"""create_app: the only place where the parts of the server are wired together."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from engine.errors import Busy, HexserveError
from server.api import documents, rerank, status, steps, tokenize
from server.api.anthropic import routes as anthropic
from server.api.body import BodyLimits
from server.api.ollama import models as ollama_models
from server.api.ollama import routes as ollama
from server.api.openai import audio, chat, completions, embeddings, realtime, responses
from server.api.openai.response_runs import StoredResponses
from server.api.openapi import OpenApiDocument
from server.generation.launch import Server
from server.generation.stream import InputSlots
from server.http.errors import ClientLeft, Refusal, WireError, bounded, encoded_error, from_engine, from_validation
from server.http.in_flight import HeldUntilAnswered, InFlight
from server.media.sources import MediaSources
from server.middleware.access_log import CLIENT_LEFT_STATUS, WRITERS, AccessLog
from server.middleware.auth import KeyRing, Rates
from server.middleware.checks import OPEN_PATHS, Guard, HeadChecks
from server.middleware.origins import EXPOSED, METHODS, is_loopback
from server.models.families import ModelCollector
from server.models.models import Models
from server.observability.metrics import Metrics
from server.observability.tracing import Layer
from server.page import files as page
from server.page.files import PATHS
from server.settings import Settings, listed

if TYPE_CHECKING:
    from server.media.fetch import MediaFetcher


def create_app(
    settings: Settings,
    models: Models,
    keys: KeyRing,
    in_flight: InFlight | None = None,
    stored: StoredResponses | None = None,
    layers: Sequence[Layer] = (),
) -> FastAPI:
    """The app that serves `models` to callers with one of `keys` (all callers if it has none), `layers` around it. The
    caller starts and closes the models, drains through `in_flight`, settles `stored`; None = nothing is stored."""
    app = FastAPI(
        title="hexserve",
        openapi_url=None,
        redirect_slashes=False,
        # FastAPI's own would tell what refused bodies hold, wherever a provider is set for the whole process.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    metrics = Metrics(ModelCollector(models))
    app.state.body_limits = BodyLimits(settings.body_limit_bytes, settings.resumable)
    slots = InputSlots(settings.max_queued, settings.max_queued)
    app.state.server = Server(settings, models, in_flight or InFlight(), metrics, slots, _fetcher(settings))
    app.state.stored, app.state.sessions = stored, realtime.OpenSessions()
    routers = [chat.router, completions.router, responses.router, tokenize.router, status.router]
    routers += [anthropic.router, ollama.router, ollama_models.router, audio.router, realtime.router]
    routers += [embeddings.router, rerank.router]
    if settings.page:
        routers += [documents.router, page.router, steps.router]
        app.state.document = OpenApiDocument(app, has_keys=len(keys) > 0)
    for router in routers:
        app.router.routes.extend(router.routes)  # include_router would build every schema again, at the first request
    app.add_middleware(HeldUntilAnswered)
    _add_checks(app, settings, keys)
    routes = tuple(route for router in routers for route in router.routes if isinstance(route, Route))
    app.state.routes = routes
    app.add_middleware(AccessLog, metrics.answered, routes, WRITERS.get(settings.access_log))
    for layer in layers:
        app.add_middleware(layer)
    for kind in (HTTPException, RequestValidationError, HexserveError, ClientLeft):
        app.add_exception_handler(kind, _answer_to)
    return app


def _fetcher(settings: Settings) -> "MediaFetcher | None":
    """What fetches images that requests name; None where the setting `media` allows none."""
    sources = MediaSources.of(settings.media)
    if sources == MediaSources():
        return None
    from server.media.fetch import MediaFetcher  # noqa: PLC0415 (its HTTP client takes 5 MB)

    return MediaFetcher(sources, settings.body_limit_bytes)


def _add_checks(app: FastAPI, settings: Settings, keys: KeyRing) -> None:
    """From the inside out: keys and rates, origins, head and Host."""
    app.add_middleware(
        Guard,
        keys=keys,
        rates=Rates(settings.requests_per_minute, settings.tokens_per_minute, settings.max_concurrent),
        isolates_cache=settings.isolate_prefix_cache,
        open_paths=OPEN_PATHS | (PATHS if settings.page else frozenset()),
    )
    if origins := listed(settings.cors_origins):
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=METHODS, allow_headers=("*",), expose_headers=EXPOSED
        )
    app.add_middleware(
        HeadChecks,
        binds_loopback=is_loopback(settings.host),
        allowed_hosts=frozenset(host.lower() for host in listed(settings.allowed_hosts)),
        origins=frozenset(origins),
    )


async def _answer_to(request: Request, failure: Exception) -> Response:
    match failure:
        case ClientLeft():
            return Response(status_code=CLIENT_LEFT_STATUS)
        case RequestValidationError():
            error = from_validation(failure.errors(), failure.body)
        case HexserveError():
            if isinstance(failure, Busy):
                cast(Server, request.app.state.server).metrics.rejected(failure.reason)
            error = from_engine(failure)
        case Refusal():
            error = failure.error
        case _:
            error = _http_error(request, cast(HTTPException, failure))
    status, body = encoded_error(error, request.scope)
    return Response(body, status, dict(error.headers), "application/json")


def _http_error(request: Request, failure: HTTPException) -> WireError:
    path = bounded(request.url.path, 200)
    texts = {404: f"Unknown path: {path}.", 405: f"The method {request.method} is not allowed for {path}."}
    message = texts.get(failure.status_code, bounded(str(failure.detail)))
    headers = dict(failure.headers or {}) | ({"Allow": _allowed(request)} if failure.status_code == 405 else {})
    return WireError(failure.status_code, message, headers=tuple(headers.items()))


def _allowed(request: Request) -> str:
    """The methods of all routes of a path; Starlette tells those of the first. Middleware asks HEAD as GET."""
    known = [route for route in request.app.state.routes if route.path_regex.match(request.scope["path"])]
    methods = {method for route in known for method in route.methods or ()}
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
