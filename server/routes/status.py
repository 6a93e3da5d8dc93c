"""What is served and how it is: /v1/models, /health, /metrics."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from engine.client.engine import EngineState
from server.models.served_model import ServedModel
from server.protocol.openapi_responses import errors
from server.protocol.status import Health, Model, ModelList
from server.service import Server, server_of

router = APIRouter()


@router.get("/v1/models", responses=errors(503))
async def list_models(request: Request) -> ModelList:
    """The models of this server, each with its adapters."""
    models = server_of(request).models.models
    return ModelList(object="list", data=[_model(model, name) for model in models for name in model.names])


@router.get("/v1/models/{model_id:path}", responses=errors(404, 503))
async def retrieve_model(model_id: str, request: Request) -> Model:
    """The model or the adapter of that name."""
    return _model(server_of(request).models.find(model_id), model_id)


def _model(model: ServedModel, name: str) -> Model:
    """What is known of the model, or of its adapter of that name."""
    info = model.engine.info
    manifest, is_adapter = info.manifest, name in info.adapters
    return Model(
        id=name,
        object="model",
        created=info.created,
        owned_by="hexserve",
        root=name if is_adapter else info.name,
        parent=model.name if is_adapter else None,
        max_model_len=info.max_context,
        context_length=info.max_context,
        meta={
            "device": info.device,
            "family": manifest.model.family,
            "quant": manifest.quant,
            "split": manifest.split,
            "parameters": manifest.model.parameters,
            "vocab": info.vocab,
            "variants": list(info.ready.variants),
            "kv_bytes_per_token": manifest.kv_bytes_per_token,
            "fingerprint": info.fingerprint,
            **({"block_length": manifest.diffusion.block_length} if manifest.diffusion is not None else {}),
        },
    )


def _health(is_well: bool, server: Server) -> Response:
    engine = server.models.first.engine
    state = "draining" if server.in_flight.draining else engine.state.value
    body = {"status": "ok" if is_well else "unavailable", "state": state}
    if is_well and engine.state in (EngineState.READY, EngineState.RESTARTING):
        body["device"] = engine.info.device
    if server.settings.engine.paced:
        body["warning"] = f"Nothing is computed: every answer is noise at the pace of {server.settings.engine.paced}."
    return JSONResponse(body, 200 if is_well else 503, headers=None if is_well else {"Retry-After": "1"})


@router.get("/health", response_model=Health, responses={503: {"model": Health, "description": "Not now."}})
async def health(request: Request) -> Response:
    """200 while requests are answered; a worker being replaced counts as well, as its requests go on."""
    server = server_of(request)
    return _health(server.models.first.engine.state in (EngineState.READY, EngineState.RESTARTING), server)


@router.get("/health/live", response_model=Health, responses={503: {"model": Health, "description": "Restart it."}})
async def live(request: Request) -> Response:
    """503 only when restarting this process is the only help."""
    server = server_of(request)
    return _health(server.models.first.engine.state not in (EngineState.DEAD, EngineState.STOPPED), server)


@router.get("/health/ready", response_model=Health, responses={503: {"model": Health, "description": "Not now."}})
async def ready(request: Request) -> Response:
    """200 when a request sent now would be worked on at once; 503 while loading, restarting or draining."""
    server = server_of(request)
    takes_requests = server.models.first.engine.state is EngineState.READY and not server.in_flight.draining
    return _health(takes_requests, server)


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Counters, gauges and histograms in Prometheus' text format."""
    return Response(server_of(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)
