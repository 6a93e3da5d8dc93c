"""What is known of the models that are served, in OpenAI's form."""

from typing import Any, Literal

from engine.bundle.manifest import Manifest
from engine.client.engine import Engine
from engine.errors import EngineFailure
from server.http.errors import from_engine
from server.http.fields import Answer
from server.models.models import ServedModel


class Model(Answer, kw_only=True):
    """The served model, or an adapter of it, whose parent it is; the last five fields are extensions.

    max_model_len, context_length: null for a checkpoint that has not been compiled yet.
    """

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "hexserve"
    root: str
    parent: str | None
    max_model_len: int | None
    context_length: int | None
    meta: dict[str, Any]


class ModelList(Answer, kw_only=True):
    object: Literal["list"] = "list"
    data: list[Model]


META = (
    *("device", "family", "quant", "split", "parameters", "vocab", "variants", "kv_bytes_per_token", "fingerprint"),
    *("block_length", "task", "generates", "capabilities"),
)


def listed_model(model: ServedModel, name: str) -> Model:
    manifest, engine = model.manifest, model.engine
    root = model.name if manifest is None else manifest.name
    longest = None if manifest is None else manifest.max_context
    if engine is not None:
        longest = engine.info.max_context
    facts = _bundle_facts(manifest) | _place(model) | _engine_facts(engine)
    return Model(
        id=name,
        created=0 if manifest is None else manifest.created,
        root=root if name == model.name else name,
        parent=None if name == model.name else model.name,
        max_model_len=longest,
        context_length=longest,
        meta={**{name: facts[name] for name in META if name in facts}, **_residence(model)},
    )


def _engine_facts(engine: Engine | None) -> dict[str, Any]:
    if engine is None:
        return {}
    info = engine.info
    return {
        "device": engine.device,
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
        "capabilities": [each.value for each in manifest.capabilities],
        "family": manifest.model.family,
        "quant": manifest.quant,
        "split": manifest.split,
        "parameters": manifest.model.parameters,
        "kv_bytes_per_token": manifest.kv_bytes_per_token,
        **({"block_length": manifest.diffusion.block_length} if manifest.diffusion is not None else {}),
    }


def _place(model: ServedModel) -> dict[str, Any]:
    """The device that its bundle was made for; of a model for two devices their workers tell."""
    if model.manifest is None or model.settings.engine.devices:
        return {}
    return {"device": "CPU" if model.manifest.npu is None else "NPU"}


def _residence(model: ServedModel) -> dict[str, Any]:
    """Whether a model that comes and goes is there, the bytes it is estimated to take, and those for prefixes."""
    if not model.comes_and_goes:
        return {}
    failure = {} if model.error is None else {"error": from_engine(EngineFailure(str(model.error))).message}
    prefixes = model.prefixes if model.size else 0
    return {"state": model.state.value, "memory_bytes": model.size, "prefix_bytes": prefixes, **failure}
