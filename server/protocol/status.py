"""Answers of /v1/models and /health."""

from typing import Any, Literal

from server.protocol.fields import Answer, Body, Name


class Model(Answer):
    """The served model, or an adapter of it, whose parent it is; the last five fields are extensions.

    max_model_len, context_length: null for a checkpoint that has not been compiled yet.
    """

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int | None
    context_length: int | None
    meta: dict[str, Any]


class ModelList(Answer):
    """Answer of GET /v1/models."""

    object: Literal["list"]
    data: list[Model]


class LoadRequest(Body):
    """Body of /models/load and /models/unload."""

    model: Name


class ModelMoved(Answer):
    """The state that a model is in afterwards."""

    success: bool
    model: str
    state: str


class Health(Answer):
    """State of the server: ok, or why not; and what computes: 'CPU', 'HTP emulator' or 'NPU'.

    warning: what a client must know before it believes an answer.
    """

    status: Literal["ok", "unavailable"]
    state: str
    device: str | None = None
    warning: str | None = None
