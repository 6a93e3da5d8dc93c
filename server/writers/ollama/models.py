"""A served model in the words of /api/tags, /api/show and /api/ps."""

import hashlib
from dataclasses import dataclass
from typing import Any

from engine.bundle.answer_format import AnswerFormat
from engine.bundle.manifest import Manifest
from engine.bundle.task import ModelTask
from server.writers.ollama.timing import SECOND_NS, rfc3339

COUNT_UNITS = ((1e9, "B"), (1e6, "M"), (1e3, "K"))


@dataclass(frozen=True, slots=True)
class KnownModel:
    """What is known of a model, or of an adapter, whose `parent` it is.

    manifest: None of a checkpoint that has not been compiled yet. context: tokens, None while it is not known.
    """

    name: str
    parent: str
    manifest: Manifest | None
    context: int | None

    def listed(self) -> dict[str, Any]:
        """What /api/tags says of it."""
        files = self.manifest.files.values() if self.manifest is not None else ()
        return {
            "name": self.name,
            "model": self.name,
            "modified_at": self._modified_at(),
            "size": sum(entry.bytes for entry in files),
            "digest": self._digest(),
            "details": self._details(),
        }

    def loaded(self, device: str, memory: int, expires_at: str) -> dict[str, Any]:
        """What /api/ps says of it while it is loaded. device: what computes. memory: bytes, 0 = as its files have."""
        listed = self.listed()
        size = memory or listed["size"]
        return {
            **{key: listed[key] for key in ("name", "model", "digest", "details")},
            "size": size,
            "expires_at": expires_at,
            "size_vram": size if device == "NPU" else 0,
            "context_length": self.context or 0,
        }

    def shown(self, template: str | None) -> dict[str, Any]:
        """What /api/show says of it."""
        return {
            "modelfile": f"FROM {self.name}\n",
            "parameters": "" if self.context is None else f"num_ctx {self.context}",
            "template": template or "",
            "details": self._details(),
            "model_info": self._model_info(),
            "capabilities": self._capabilities(),
            "modified_at": self._modified_at(),
        }

    def _details(self) -> dict[str, Any]:
        manifest = self.manifest
        family = "" if manifest is None else manifest.model.family
        return {
            "parent_model": self.parent,
            "format": "onnx",
            "family": family,
            "families": [family] if family else [],
            "parameter_size": "" if manifest is None else _short(manifest.model.parameters),
            "quantization_level": "" if manifest is None else manifest.quant,
        }

    def _modified_at(self) -> str:
        return rfc3339((0 if self.manifest is None else self.manifest.created) * SECOND_NS)

    def _digest(self) -> str:
        """SHA-256 of what the bundle's files are."""
        files = {} if self.manifest is None else self.manifest.files
        parts = sorted(f"{name} {entry.sha256}" for name, entry in files.items())
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def _capabilities(self) -> list[str]:
        """Ollama's words for what a request may ask of it."""
        if self.manifest is not None and self.manifest.task is ModelTask.EMBED:
            return ["embedding"]
        if self.manifest is not None and not self.manifest.generates:
            return []  # it scores documents, for which Ollama has no word
        answer = AnswerFormat() if self.manifest is None else self.manifest.text.writes
        words = ((answer.calls, "tools"), (answer.reasoning, "thinking"))
        return ["completion", *(word for part, word in words if part is not None)]

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


def _short(count: int) -> str:
    """3.7M for 3,700,000."""
    return next((f"{count / unit:.1f}{name}" for unit, name in COUNT_UNITS if count >= unit), str(count))
