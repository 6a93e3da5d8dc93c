"""What is known of the models that are served, in OpenAI's form."""

from typing import Any, Literal

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
    manifest, is_itself = model.manifest, name == model.name
    root = model.name if manifest is None else manifest.name
    known = manifest if model.engine is None else model.engine.info
    longest = None if known is None else known.max_context
    facts = _facts(model)
    return Model(
        id=name,
        created=0 if manifest is None else manifest.created,
        root=root if is_itself else name,
        parent=None if is_itself else model.name,
        max_model_len=longest,
        context_length=longest,
        meta={**{name: facts[name] for name in META if name in facts}, **_residence(model)},
    )


def _facts(model: ServedModel) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if (manifest := model.manifest) is not None:  # else a checkpoint that has not been compiled yet
        for name in ("generates", "quant", "split", "kv_bytes_per_token"):
            facts[name] = getattr(manifest, name)
        facts |= {"task": manifest.task.value, "capabilities": [each.value for each in manifest.capabilities]}
        facts |= {"family": manifest.model.family, "parameters": manifest.model.parameters}
        if manifest.diffusion is not None:
            facts["block_length"] = manifest.diffusion.block_length
        if not model.settings.engine.devices:  # of a model for two devices their workers tell
            facts["device"] = "CPU" if manifest.npu is None else "NPU"
    if (engine := model.engine) is not None:
        facts |= {"device": engine.device, "variants": list(engine.info.ready.variants)}
        facts |= {"vocab": engine.info.vocab, "fingerprint": engine.info.fingerprint}
    return facts


def _residence(model: ServedModel) -> dict[str, Any]:
    """Whether a model that comes and goes is there, the bytes it is estimated to take, and those for prefixes."""
    if not model.comes_and_goes:
        return {}
    failure = {} if model.error is None else {"error": from_engine(EngineFailure(str(model.error))).message}
    prefixes = model.prefixes if model.size else 0
    return {"state": model.state.value, "memory_bytes": model.size, "prefix_bytes": prefixes, **failure}
