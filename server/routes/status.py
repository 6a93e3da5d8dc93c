"""What is served and how it is: /v1/models, /health, /metrics."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST

from engine.client.engine import EngineState
from server.protocol.openapi_responses import errors
from server.protocol.status import Health, Model, ModelList
from server.requests.params import check_model
from server.service import Service, service_of

router = APIRouter()


@router.get("/v1/models", responses=errors(503))
async def list_models(request: Request) -> ModelList:
    """The one model of this server, and its adapters."""
    service = service_of(request)
    names = ("", *service.engine.info.adapters)
    return ModelList(object="list", data=[_model(service, name) for name in names])


@router.get("/v1/models/{model_id:path}", responses=errors(404, 503))
async def retrieve_model(model_id: str, request: Request) -> Model:
    """The model or the adapter of that name."""
    service = service_of(request)
    name = check_model(model_id, service.engine.info, service.settings)
    return _model(service, name if name in service.engine.info.adapters else "")


def _model(service: Service, adapter: str) -> Model:
    """What is known of the model, "", or of one of its adapters."""
    info = service.engine.info
    manifest = info.manifest
    served = service.settings.model_name or info.name
    return Model(
        id=adapter or served,
        object="model",
        created=info.created,
        owned_by="hexserve",
        root=adapter or info.name,
        parent=served if adapter else None,
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


def _health(is_well: bool, service: Service) -> Response:
    state = "draining" if service.in_flight.draining else service.engine.state.value
    body = {"status": "ok" if is_well else "unavailable", "state": state}
    if is_well and service.engine.state in (EngineState.READY, EngineState.RESTARTING):
        body["device"] = service.engine.info.device
    if service.settings.engine.paced:
        body["warning"] = f"Nothing is computed: every answer is noise at the pace of {service.settings.engine.paced}."
    return JSONResponse(body, 200 if is_well else 503, headers=None if is_well else {"Retry-After": "1"})


@router.get("/health", response_model=Health, responses={503: {"model": Health, "description": "Not now."}})
async def health(request: Request) -> Response:
    """200 while requests are answered; a worker being replaced counts as well, as its requests go on."""
    service = service_of(request)
    return _health(service.engine.state in (EngineState.READY, EngineState.RESTARTING), service)


@router.get("/health/live", response_model=Health, responses={503: {"model": Health, "description": "Restart it."}})
async def live(request: Request) -> Response:
    """503 only when restarting this process is the only help."""
    service = service_of(request)
    return _health(service.engine.state not in (EngineState.DEAD, EngineState.STOPPED), service)


@router.get("/health/ready", response_model=Health, responses={503: {"model": Health, "description": "Not now."}})
async def ready(request: Request) -> Response:
    """200 when a request sent now would be worked on at once; 503 while loading, restarting or draining."""
    service = service_of(request)
    return _health(service.takes_requests, service)


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(request: Request) -> Response:
    """Counters, gauges and histograms in Prometheus' text format."""
    return Response(service_of(request).metrics.text(), media_type=CONTENT_TYPE_LATEST)
