"""The states of one model among several, and which may follow which."""

from enum import StrEnum


class ModelState(StrEnum):
    """Where a model is in its life. Only a ready one answers; a failed one is tried again."""

    UNLOADED = "unloaded"
    LOADING = "loading"  # from the first request on: compiling and waiting for memory count as well
    READY = "ready"  # also while its worker is being replaced
    UNLOADING = "unloading"
    FAILED = "failed"


MODEL_MOVES: dict[ModelState, frozenset[ModelState]] = {
    ModelState.UNLOADED: frozenset({ModelState.LOADING}),
    ModelState.LOADING: frozenset({ModelState.READY, ModelState.FAILED, ModelState.UNLOADED}),
    ModelState.READY: frozenset({ModelState.UNLOADING}),
    ModelState.UNLOADING: frozenset({ModelState.UNLOADED, ModelState.FAILED}),
    ModelState.FAILED: frozenset({ModelState.LOADING, ModelState.UNLOADED}),
}
