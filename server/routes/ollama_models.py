"""What is served, in Ollama's format, and the routes that would change it."""

from fastapi import APIRouter, Request, Response

from server.http.body import UntypedRoute
from server.http.errors import refuse
from server.models.models import find
from server.models.served_model import ServedModel
from server.protocol.ollama.errors import OllamaError
from server.protocol.ollama.models import (
    OllamaLoadedList,
    OllamaLoadedModel,
    OllamaModel,
    OllamaModelList,
    OllamaShown,
    OllamaShowRequest,
    OllamaVersion,
)
from server.protocol.openapi_responses import error_answers
from server.requests.ollama.names import served_name, tagged
from server.service import server_of
from server.writers.ollama.models import KnownModel
from server.writers.ollama.timing import Clock

# The Ollama whose API is spoken here: the first with log-probabilities.
SPOKEN_VERSION = "0.12.11"

router = APIRouter(route_class=UntypedRoute)


@router.get("/api/tags", responses=error_answers(503, model=OllamaError))
async def list_ollama_models(request: Request) -> OllamaModelList:
    """The models that can be asked, each with its adapters."""
    models = server_of(request).models.models
    known = [_known(model, name) for model in models for name in model.names]
    return OllamaModelList(models=[OllamaModel.model_validate(model.listed()) for model in known])


@router.post("/api/show", responses=error_answers(model=OllamaError))
async def show_ollama_model(body: OllamaShowRequest, request: Request) -> OllamaShown:
    """All that is known of a model; its chat template while it is loaded."""
    models = server_of(request).models.models
    name = served_name(models, body.model)
    model = find(models, name)
    template = None if model.engine is None else model.engine.text_facts.chat_template
    return OllamaShown.model_validate(_known(model, name).shown(template))


@router.get("/api/ps", responses=error_answers(503, model=OllamaError))
async def list_loaded_models(request: Request) -> OllamaLoadedList:
    """The models that are loaded, and when each is unloaded if nobody uses it."""
    models, clock = server_of(request).models, Clock()
    loaded = [
        _known(model, model.name).loaded(model.engine.info.device, model.size, clock.stamp(models.left_s(model)))
        for model in models.models
        if model.engine is not None
    ]
    return OllamaLoadedList(models=[OllamaLoadedModel.model_validate(model) for model in loaded])


def _known(model: ServedModel, name: str) -> KnownModel:
    """What is known of a model, or of its adapter of that name."""
    manifest, engine = model.manifest, model.engine
    context = None if manifest is None else manifest.max_context
    if engine is not None:
        context = engine.info.max_context
    return KnownModel(tagged(name), "" if name == model.name else tagged(model.name), manifest, context)


@router.get("/api/version")
async def ollama_version() -> OllamaVersion:
    """Which version of Ollama's API this is."""
    return OllamaVersion(version=SPOKEN_VERSION)


@router.post("/api/pull", include_in_schema=False)
@router.post("/api/push", include_in_schema=False)
@router.post("/api/create", include_in_schema=False)
@router.post("/api/copy", include_in_schema=False)
@router.delete("/api/delete", include_in_schema=False)
@router.head("/api/blobs/{digest}", include_in_schema=False)
@router.post("/api/blobs/{digest}", include_in_schema=False)
async def change_models() -> Response:
    """Models are files that the operator of the server brings."""
    message = (
        "Models are not changed over HTTP. Fetch one with `hexserve pull` or make one with `hexserve compile`, "
        "then serve it with `hexserve serve`."
    )
    raise refuse(message, status=501)
