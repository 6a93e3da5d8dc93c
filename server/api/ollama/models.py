"""What is served, in Ollama's format, and the routes that would change it."""

import hashlib
import time
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import model_validator

from engine.bundle.manifest import Manifest
from engine.bundle.specs import Capability
from server.api.body import UntypedRoute
from server.api.ollama.answers import SECOND_NS, rfc3339, stamp
from server.api.ollama.requests import OllamaOptions
from server.api.ollama.translation import named_model, tagged
from server.api.openapi import answers
from server.generation.launch import server_of, written
from server.http.errors import OllamaError, refuse
from server.http.fields import Answer, Body, Name, NotYet
from server.models.models import ServedModel


class OllamaDetails(Answer):
    """What kind of model it is. `parent_model` is the model of an adapter, "" of the model itself."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(Answer):
    """A model that can be asked. `size` is bytes, `digest` is of all its files."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaModelList(Answer):
    models: list[OllamaModel]


class OllamaLoadedModel(Answer):
    """A model that is loaded. `size_vram` is what lies in the memory of an accelerator."""

    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str
    size_vram: int
    context_length: int


class OllamaLoadedList(Answer):
    models: list[OllamaLoadedModel]


class OllamaVersion(Answer):
    """Answer of GET /api/version: of Ollama's API, by which clients decide what they may ask for."""

    version: str


class OllamaShowRequest(Body):
    """POST /api/show. `name` is an older name of `model`."""

    model: Name
    verbose: bool | None = None
    system: NotYet = None
    template: NotYet = None
    options: OllamaOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _name_is_model(cls, value: Any) -> Any:
        if isinstance(value, dict) and "model" not in value and "name" in value:
            return {"model" if key == "name" else key: field for key, field in value.items()}
        return value


class OllamaShown(Answer):
    """Answer of POST /api/show. `template` is the model's own, in Jinja; `model_info` has GGUF's names."""

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


OLLAMA_WORDS = {  # it has none for scores and speech
    Capability.COMPLETION: "completion",
    Capability.TOOLS: "tools",
    Capability.REASONING: "thinking",
    Capability.VISION: "vision",
    Capability.EMBEDDINGS: "embedding",
}
COUNT_UNITS = ((1e9, "B"), (1e6, "M"), (1e3, "K"))


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model, or an adapter, whose `parent` it is. manifest, context (in tokens): None before it is compiled."""

    name: str
    parent: str
    manifest: Manifest | None
    context: int | None

    def listed(self) -> OllamaModel:
        files = {} if self.manifest is None else self.manifest.files
        size = sum(entry.bytes for entry in files.values())
        # SHA-256 of what the bundle's files are.
        parts = sorted(f"{name} {entry.sha256}" for name, entry in files.items())
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()
        return OllamaModel(self.name, self.name, self._modified_at(), size, digest, self._details())

    def loaded(self, device: str, memory: int, expires_at: str) -> OllamaLoadedModel:
        """What /api/ps says of it while it is loaded. device: what computes. memory: bytes, 0 = as its files have."""
        listed = self.listed()
        size = memory or listed.size
        return OllamaLoadedModel(
            name=self.name,
            model=self.name,
            size=size,
            digest=listed.digest,
            details=listed.details,
            expires_at=expires_at,
            size_vram=size if device == "NPU" else 0,
            context_length=self.context or 0,
        )

    def shown(self, template: str | None) -> OllamaShown:
        known = (Capability.COMPLETION,) if self.manifest is None else self.manifest.capabilities
        capabilities = [OLLAMA_WORDS[each] for each in known if each in OLLAMA_WORDS]
        return OllamaShown(
            modelfile=f"FROM {self.name}\n",
            parameters="" if self.context is None else f"num_ctx {self.context}",
            template=template or "",
            details=self._details(),
            model_info=self._model_info(),
            capabilities=capabilities,
            modified_at=self._modified_at(),
        )

    def _details(self) -> OllamaDetails:
        if self.manifest is None:
            return OllamaDetails(self.parent, "onnx", "", [], "", "")
        model, count = self.manifest.model, self.manifest.model.parameters
        # 3.7M for 3,700,000.
        short = next((f"{count / unit:.1f}{name}" for unit, name in COUNT_UNITS if count >= unit), str(count))
        families = [model.family] if model.family else []
        return OllamaDetails(self.parent, "onnx", model.family, families, short, self.manifest.quant)

    def _modified_at(self) -> str:
        return rfc3339((0 if self.manifest is None else self.manifest.created) * SECOND_NS)

    def _model_info(self) -> dict[str, Any]:
        """GGUF's names of what a manifest knows; clients look the context length up."""
        if self.manifest is None:
            return {"general.basename": self.name}
        model, family = self.manifest.model, self.manifest.model.family
        return {
            "general.architecture": family,
            "general.basename": self.name,
            "general.parameter_count": model.parameters,
            f"{family}.context_length": self.context,
            f"{family}.embedding_length": model.hidden,
            f"{family}.feed_forward_length": model.ffn,
            f"{family}.block_count": model.layers,
            f"{family}.attention.head_count": model.heads,
            f"{family}.attention.head_count_kv": model.kv_heads,
            f"{family}.attention.key_length": model.head_dim,
            f"{family}.vocab_size": model.vocab,
        }


# The Ollama whose API is spoken here: the first with log-probabilities.
SPOKEN_VERSION = "0.12.11"
router = APIRouter(route_class=UntypedRoute)


@router.get("/api/tags", responses=answers(OllamaModelList, statuses=(503,), model=OllamaError))
async def list_ollama_models(request: Request) -> Response:
    """The models that can be asked, each with its adapters."""
    models = server_of(request).models.models
    return written(OllamaModelList([_known(model, name).listed() for model in models for name in model.names]))


@router.post("/api/show", responses=answers(OllamaShown, model=OllamaError))
async def show_ollama_model(body: OllamaShowRequest, request: Request) -> Response:
    """All that is known of a model; its chat template while it is loaded."""
    model, name = named_model(server_of(request).models.models, body.model)
    template = None if model.engine is None else model.engine.text_facts.chat_template
    return written(_known(model, name).shown(template))


@router.get("/api/ps", responses=answers(OllamaLoadedList, statuses=(503,), model=OllamaError))
async def list_loaded_models(request: Request) -> Response:
    """The models that are loaded, and when each is unloaded if nobody uses it."""
    models, now_ns = server_of(request).models, time.time_ns()
    loaded = [
        _known(model, model.name).loaded(model.engine.device, model.size, stamp(now_ns, models.left_s(model)))
        for model in models.models
        if model.engine is not None
    ]
    return written(OllamaLoadedList(loaded))


def _known(model: ServedModel, name: str) -> KnownModel:
    known = model.manifest if model.engine is None else model.engine.info
    context = None if known is None else known.max_context
    return KnownModel(tagged(name), "" if name == model.name else tagged(model.name), model.manifest, context)


@router.get("/api/version", responses={200: {"model": OllamaVersion}})
async def ollama_version() -> Response:
    """Which version of Ollama's API this is."""
    return written(OllamaVersion(SPOKEN_VERSION))


@router.post("/api/pull", include_in_schema=False)
@router.post("/api/push", include_in_schema=False)
@router.post("/api/create", include_in_schema=False)
@router.post("/api/copy", include_in_schema=False)
@router.delete("/api/delete", include_in_schema=False)
@router.head("/api/blobs/{digest}", include_in_schema=False)
@router.post("/api/blobs/{digest}", include_in_schema=False)
async def change_models() -> Response:
    """Models are files that the operator of the server brings."""
    how = "Fetch one with `hexserve pull` or make one with `hexserve compile`, then serve it with `hexserve serve`."
    raise refuse(f"Models are not changed over HTTP. {how}", status=501)
