"""create_app: the only place where the parts of the server are wired together."""

from collections.abc import Sequence
from typing import cast

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.routing import Route

from engine.errors import Busy, HexserveError
from server.http.access_log import CLIENT_LEFT_STATUS, AccessLog
from server.http.access_record import WRITERS
from server.http.body import BodyLimits
from server.http.error_formats import encoded_error
from server.http.errors import ClientLeft, Refusal, WireError, bounded, from_engine, from_validation
from server.http.guard.hosts import is_loopback
from server.http.guard.keys import KeyRing
from server.http.guard.layer import OPEN_PATHS, Guard, GuardRules
from server.http.guard.rates import Rates
from server.http.held import HeldUntilAnswered
from server.http.in_flight import InFlight
from server.http.metrics import Metrics
from server.http.openapi import OpenApiDocument
from server.http.pooled_run import InputSlots
from server.models.collector import ResidenceCollector
from server.models.models import Models
from server.page.files import PATHS, read_page
from server.routes import (
    anthropic,
    chat,
    completions,
    docs,
    embeddings,
    loading,
    ollama_embed,
    ollama_generation,
    ollama_models,
    page,
    passes,
    rerank,
    responses,
    status,
    stored_responses,
    tokenize,
)
from server.service import Server
from server.settings import Settings, listed
from server.stored.responses import StoredResponses
from server.tracing.wanted import Layer


def create_app(
    settings: Settings,
    models: Models,
    keys: KeyRing,
    in_flight: InFlight | None = None,
    stored: StoredResponses | None = None,
    layers: Sequence[Layer] = (),
) -> FastAPI:
    """The app that serves `models` to callers with one of `keys` (all callers if it has none), `layers` around it.

    The caller starts and closes the models, drains or ends requests through `in_flight`, and settles `stored`; without
    it no response is stored.
    """
    app = FastAPI(
        title="hexserve",
        openapi_url=None,
        redirect_slashes=False,
        # FastAPI's own would tell what refused bodies hold, wherever a provider is set for the whole process.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    metrics = Metrics(models, [ResidenceCollector(models)])
    app.state.body_limits = BodyLimits(settings.body_limit_bytes, settings.body_timeout_s, settings.resumable)
    slots = InputSlots(settings.max_queued, settings.max_queued)
    app.state.server = Server(settings, models, in_flight or InFlight(), metrics, slots)
    routers = [chat.router, completions.router, responses.router, tokenize.router, loading.router, status.router]
    app.state.stored = stored
    routers += [stored_responses.router, anthropic.router, ollama_generation.router, ollama_models.router]
    routers += [embeddings.router, rerank.router, ollama_embed.router]
    if settings.docs:
        routers.append(docs.router)
        app.state.document = OpenApiDocument(app, has_keys=len(keys) > 0)
    if settings.page:
        routers += [page.router, passes.router]
        app.state.page = read_page()
    for router in routers:
        app.include_router(router)
    app.add_middleware(HeldUntilAnswered)
    app.add_middleware(Guard, rules=_rules(settings), keys=keys)
    routes = tuple(route for router in routers for route in router.routes if isinstance(route, Route))
    app.state.routes = routes
    write = WRITERS[settings.access_log_format] if settings.access_log else None
    app.add_middleware(AccessLog, answered=metrics.answered, routes=routes, write=write)
    for layer in layers:
        app.add_middleware(layer)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HexserveError, _engine_error)
    app.add_exception_handler(ClientLeft, _client_left)
    return app


def _rules(settings: Settings) -> GuardRules:
    return GuardRules(
        binds_loopback=is_loopback(settings.host),
        allowed_hosts=frozenset(host.lower() for host in listed(settings.allowed_hosts)),
        origins=frozenset(listed(settings.cors_origins)),
        rates=Rates(settings.requests_per_minute, settings.tokens_per_minute, settings.max_concurrent),
        header_limit_bytes=settings.header_limit_bytes,
        isolates_cache=settings.isolate_prefix_cache,
        open_paths=OPEN_PATHS | (PATHS if settings.page else frozenset()),
    )


def _response(request: Request, error: WireError) -> Response:
    status, body = encoded_error(error, request.scope)
    return Response(body, status, dict(error.headers), "application/json")


async def _http_error(request: Request, error: Exception) -> Response:
    if isinstance(error, Refusal):
        return _response(request, error.error)
    failure = cast(HTTPException, error)
    path = bounded(request.url.path, 200)
    texts = {404: f"Unknown path: {path}.", 405: f"The method {request.method} is not allowed for {path}."}
    message = texts.get(failure.status_code, bounded(str(failure.detail)))
    headers = dict(failure.headers or {}) | ({"Allow": _allowed(request)} if failure.status_code == 405 else {})
    return _response(request, WireError(failure.status_code, message, headers=tuple(headers.items())))


def _allowed(request: Request) -> str:
    """The methods of all routes of a path; Starlette tells those of the first. HEAD is asked as GET by the guard."""
    known = [route for route in request.app.state.routes if route.path_regex.match(request.scope["path"])]
    methods = {method for route in known for method in route.methods or ()}
    return ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


async def _validation_error(request: Request, error: Exception) -> Response:
    failure = cast(RequestValidationError, error)
    return _response(request, from_validation(failure.errors(), failure.body))


async def _engine_error(request: Request, error: Exception) -> Response:
    failure = cast(HexserveError, error)
    if isinstance(failure, Busy):
        cast(Server, request.app.state.server).metrics.rejected(failure.reason)
    return _response(request, from_engine(failure))


async def _client_left(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_LEFT_STATUS)
