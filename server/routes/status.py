"""What is served and how it is: /v1/models, /health, /metrics."""

from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from engine.bundle.manifest import Manifest
from engine.client.engine import EngineState
from engine.errors import EngineFailure
from server.engine_seam import EngineLike
from server.http.error_formats import speaks_anthropic
from server.http.errors import from_engine
from server.models.models import find
from server.models.served_model import ServedModel
from server.protocol.anthropic.models import AnthropicModel, AnthropicModelPage
from server.protocol.openapi_responses import errors
from server.protocol.status import Health, Model, ModelList
from server.service import Server, server_of
from server.writers.anthropic.models import anthropic_model, anthropic_page

router = APIRouter()
META = (
    *("device", "family", "quant", "split", "parameters", "vocab", "variants", "kv_bytes_per_token", "fingerprint"),
    *("block_length", "task", "generates"),
)


@router.get("/v1/models", responses=errors(503))
async def list_models(request: Request) -> ModelList | AnthropicModelPage:
    """The models of this server, each with its adapters; in Anthropic's form when asked with `anthropic-version`."""
    models = server_of(request).models.models
    listed = ModelList(object="list", data=[_model(model, name) for model in models for name in model.names])
    return anthropic_page(listed.data, request.query_params) if speaks_anthropic(request.headers) else listed


@router.get("/v1/models/{model_id:path}", responses=errors(404, 503))
async def retrieve_model(model_id: str, request: Request) -> Model | AnthropicModel:
    """The model or the adapter of that name; in Anthropic's form when asked with `anthropic-version`."""
    found = _model(find(server_of(request).models.models, model_id), model_id)
    return anthropic_model(found) if speaks_anthropic(request.headers) else found


def _model(model: ServedModel, name: str) -> Model:
    """What is known of the model, or of its adapter of that name."""
    manifest, engine = model.manifest, model.engine
    root = model.name if manifest is None else manifest.name
    longest = None if manifest is None else manifest.max_context
    if engine is not None:
        longest = engine.info.max_context
    facts = _bundle_facts(manifest) | _engine_facts(engine)
    return Model(
        id=name,
        object="model",
        created=0 if manifest is None else manifest.created,
        owned_by="hexserve",
        root=root if name == model.name else name,
        parent=None if name == model.name else model.name,
        max_model_len=longest,
        context_length=longest,
        meta={**{name: facts[name] for name in META if name in facts}, **_residence(model)},
    )


def _engine_facts(engine: EngineLike | None) -> dict[str, Any]:
    """What is known of a loaded model only."""
    if engine is None:
        return {}
    info = engine.info
    return {
        "device": info.device,
        "vocab": info.vocab,
        "variants": list(info.ready.variants),
        "fingerprint": info.fingerprint,
    }


def _bundle_facts(manifest: Manifest | None) -> dict[str, Any]:
    if manifest is None:  # a checkpoint that has not been compiled yet
        return {}
    return {
        "task": manifest.task.value,
        "generates": manifest.generates,
        "family": manifest.model.family,
        "quant": manifest.quant,
        "split": manifest.split,
        "parameters": manifest.model.parameters,
        "kv_bytes_per_token": manifest.kv_bytes_per_token,
        **({"block_length": manifest.diffusion.block_length} if manifest.diffusion is not None else {}),
    }


def _residence(model: ServedModel) -> dict[str, Any]:
    """Whether a model that comes and goes is there, the bytes it is reckoned to take, and those for prefixes."""
    if not model.comes_and_goes:
        return {}
    failure = {} if model.error is None else {"error": from_engine(EngineFailure(str(model.error))).message}
    prefixes = model.prefixes if model.size else 0
    return {"state": model.state.value, "memory_bytes": model.size, "prefix_bytes": prefixes, **failure}


def _health(is_well: bool, server: Server) -> Response:
    found = server.models
    state = "draining" if server.in_flight.draining else found.state.value
    body = {"status": "ok" if is_well else "unavailable", "state": state}
    if is_well and found.state in (EngineState.READY, EngineState.RESTARTING):
        devices = [model.engine.info.device for model in found.models if model.engine is not None]
        body |= {"device": devices[0]} if devices else {}
    if server.settings.engine.paced:
        body["warning"] = f"Nothing is computed: every answer is noise at the pace of {server.settings.engine.paced}."
    return JSONResponse(body, 200 if is_well else 503, headers=None if is_well else {"Retry-After": "1"})


@router.get("/health", response_model=Health, responses={503: {"model": Health, "description": "Not now."}})
async def health(request: Request) -> Response:
    """200 while requests are answered; a worker being replaced counts as well, as its requests go on."""
    server = server_of(request)
    return _health(server.models.state in (EngineState.READY, EngineState.RESTARTING), server)


@router.get("/health/live", response_model=Health, responses={503: {"model": Health, "description": "Restart it."}})
async def live(request: Request) -> Response:
    """503 only when restarting this process is the only help."""
    server = server_of(request)
    return _health(server.models.state not in (EngineState.DEAD, EngineState.STOPPED), server)


@router.get("/health/ready", response_model=Health, responses={503: {"model": Health, "description": "Not now."}})
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
