"""POST /models/load and POST /models/unload: models that come and go, told to."""

from fastapi import APIRouter, Request

from server.http.body import BoundedRoute
from server.models.models import find
from server.protocol.openapi_responses import error_answers, errors
from server.protocol.status import LoadRequest, ModelMoved
from server.service import server_of, take_model

router = APIRouter(route_class=BoundedRoute)


@router.post("/models/load", responses=error_answers())
async def load(body: LoadRequest, request: Request) -> ModelMoved:
    """Load a model, if it is not loaded, and answer when it is; as the first request to it would."""
    service = await take_model(request, body.model)
    return ModelMoved(success=True, model=service.model, state="ready")


@router.post("/models/unload", responses=error_answers() | errors(409))
async def unload(body: LoadRequest, request: Request) -> ModelMoved:
    """Unload a model that no request uses, and answer when its memory is free; 409 while one does."""
    models = server_of(request).models
    model = find(models.models, body.model)
    await models.unload(model)
    return ModelMoved(success=True, model=body.model, state=model.state.value)
