"""Bodies and answers of the routes about models: /api/tags, /api/show, /api/ps, /api/version."""

from typing import Any

from pydantic import model_validator

from server.protocol.fields import Answer, Body, Name, NotYet
from server.protocol.ollama.options import OllamaOptions


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
    """Answer of GET /api/tags."""

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
    """Answer of GET /api/ps."""

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
