"""What is served and how it is: /v1/models, /models/load, /models/unload, /health, /metrics."""

from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from msgspec import UNSET, UnsetType
from prometheus_client import CONTENT_TYPE_LATEST

from engine.client.engine import EngineState
from server.api.anthropic.models import AnthropicModel, AnthropicModelPage, anthropic_model, anthropic_page
from server.api.body import BoundedRoute
from server.api.openai.models import Model, ModelList, listed_model
from server.api.openapi import answers, error_answers
from server.generation.launch import Server, server_of, take_model, written
from server.http.errors import speaks_anthropic
from server.http.fields import Answer, Body, Name
from server.models.models import find


class LoadRequest(Body):
    model: Name


class ModelMoved(Answer, kw_only=True):
    """The state that a model is in afterwards."""

    success: bool = True
    model: str
    state: str


class Health(Answer):
    """State of the server: ok, or why not; and what computes: 'CPU', 'HTP emulator' or 'NPU'."""

    status: Literal["ok", "unavailable"]
    state: str
    device: str | UnsetType = UNSET


router = APIRouter(route_class=BoundedRoute)


@router.post("/models/load", responses=answers(ModelMoved))
async def load(body: LoadRequest, request: Request) -> Response:
    """Load a model, if it is not loaded, and answer when it is; as the first request to it would."""
    service = await take_model(request, body.model)
    return written(ModelMoved(model=service.model, state="ready"))


@router.post("/models/unload", responses=answers(ModelMoved) | error_answers(409))
async def unload(body: LoadRequest, request: Request) -> Response:
    """Unload a model that no request uses, and answer when its memory is free; 409 while one does."""
    models = server_of(request).models
    model = find(models.models, body.model)
    await models.unload(model)
    return written(ModelMoved(model=body.model, state=model.state.value))


@router.get("/v1/models", responses=answers(ModelList | AnthropicModelPage, statuses=(503,)))
async def list_models(request: Request) -> Response:
    """The models of this server, each with its adapters; in Anthropic's form when asked with `anthropic-version`."""
    models = server_of(request).models.models
    listed = [listed_model(model, name) for model in models for name in model.names]
    is_anthropic = speaks_anthropic(request.headers)
    return written(anthropic_page(listed, request.query_params) if is_anthropic else ModelList(data=listed))


@router.get("/v1/models/{model_id:path}", responses=answers(Model | AnthropicModel, statuses=(404, 503)))
async def retrieve_model(model_id: str, request: Request) -> Response:
    """The model or the adapter of that name; in Anthropic's form when asked with `anthropic-version`."""
    found = listed_model(find(server_of(request).models.models, model_id), model_id)
    return written(anthropic_model(found) if speaks_anthropic(request.headers) else found)


def _health(is_well: bool, server: Server) -> Response:
    found = server.models
    answer = Health("ok" if is_well else "unavailable", "draining" if server.in_flight.draining else found.state.value)
    if is_well and found.state in (EngineState.READY, EngineState.RESTARTING):
        answer.device = next((model.engine.device for model in found.models if model.engine is not None), UNSET)
    response = written(answer, 200 if is_well else 503)
    if not is_well:
        response.headers["Retry-After"] = "1"
    return response


def _answers(otherwise: str) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": Health}, 503: {"model": Health, "description": otherwise}}


@router.get("/health", responses=_answers("Not now."))
async def health(request: Request) -> Response:
    """200 while requests are answered; a worker being replaced counts as well, as its requests go on."""
    server = server_of(request)
    return _health(server.models.state in (EngineState.READY, EngineState.RESTARTING), server)


@router.get("/health/live", responses=_answers("Restart it."))
async def live(request: Request) -> Response:
    """503 only when restarting this process is the only help."""
    server = server_of(request)
    return _health(server.models.state not in (EngineState.DEAD, EngineState.STOPPED), server)


@router.get("/health/ready", responses=_answers("Not now."))
async def ready(request: Request) -> Response:
    """200 when a request sent now would be worked on at once; 503 while loading, restarting or draining.

    With several models it is 200: a request for one that is not loaded waits for it.
    """
    server = server_of(request)
    return _health(server.models.state is EngineState.READY and not server.in_flight.draining, server)


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Counters, gauges and histograms in Prometheus' text format."""
    return Response(server_of(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)
