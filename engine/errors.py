"""Every failure the engine can report, as one tree.

HexserveError
|- CallerError            the caller's fault: HTTP 4xx, never retried
|  |- InvalidRequest      a field is wrong
|  `- ContextLengthExceeded
|- Busy                   try again later: HTTP 503 with Retry-After
|- EngineFailure          our fault: HTTP 500
|  |- WorkerDied          the worker died too often under one request
|  `- StepFailed          a graph run failed
|- UnusableInput               a setting, an option, a file or an address that was given
|- BundleError            a bundle cannot be served
`- CompileError           a checkpoint cannot be compiled
   `- UnsupportedModel    an architecture, rotary type or option that is not implemented
"""

from enum import Enum
from functools import partial


class HexserveError(Exception):
    """Root of the tree; `str(error)` is a sentence fit for the caller."""


class CallerError(HexserveError):
    """The request is at fault. `param` is the dotted path of the field, `code` OpenAI's error code."""

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class InvalidRequest(CallerError):
    """A field has a wrong type, range or combination."""


class ContextLengthExceeded(CallerError):
    """Prompt plus completion cannot fit the context window. Counts in tokens; `at_least` if not all were counted."""

    def __init__(
        self, limit: int, prompt_tokens: int, completion_tokens: int, param: str = "messages", at_least: bool = False
    ) -> None:
        bound = "at least " if at_least else ""
        super().__init__(
            f"This model's maximum context length is {limit} tokens. However, you requested "
            f"{bound}{prompt_tokens + completion_tokens} tokens ({bound}{prompt_tokens} in the {param}, "
            f"{completion_tokens} in the completion). Please reduce the length of the {param} or completion.",
            param,
            "context_length_exceeded",
        )
        self.limit, self.prompt_tokens = limit, prompt_tokens
        self._named = partial(ContextLengthExceeded, limit, prompt_tokens, completion_tokens, at_least=at_least)

    def named(self, param: str) -> "ContextLengthExceeded":
        """The same, said of the field that holds the prompt."""
        return self._named(param)


class BusyReason(Enum):
    """Which limit or state refused a request; the value is its label in the metrics."""

    REQUESTS = "max_num_queued_reqs"  # as many as may wait and run (vLLM's label)
    PROMPT_TOKENS = "max_num_queued_tokens"  # as many as may wait (vLLM's label)
    WORKER = "worker_behind"  # the worker process has not read what it was already sent
    GRAMMARS = "max_num_queued_grammars"  # as many as may wait to be compiled
    MODELS_MEMORY = "models_memory"  # what is loaded is in use, and another model does not fit beside it
    WATCHERS = "max_num_pass_watchers"  # as many as may watch the steps
    LOADING = "loading"
    SHUTTING_DOWN = "shutting_down"

    @property
    def is_load(self) -> bool:
        """True when fewer requests would have helped; False for a state that every request meets."""
        return self not in (BusyReason.LOADING, BusyReason.SHUTTING_DOWN)


class Busy(HexserveError):
    """The server cannot take the request now. `retry_after_s` is the expected wait in seconds."""

    def __init__(self, message: str, reason: BusyReason, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s

    @classmethod
    def loading(cls) -> "Busy":
        """The refusal of a request that comes before the model is loaded."""
        return cls("The model is still loading.", BusyReason.LOADING, retry_after_s=2.0)

    @classmethod
    def shutting_down(cls) -> "Busy":
        """The refusal of a request that comes, or is not finished, when the server ends."""
        return cls("The server is shutting down.", BusyReason.SHUTTING_DOWN, retry_after_s=10.0)


class EngineFailure(HexserveError):
    """The engine broke while it worked on the request."""


class WorkerDied(EngineFailure):
    """The worker process died too often while this request ran."""


class StepFailed(EngineFailure):
    """A graph run raised; nothing of the step was committed."""


class UnusableInput(HexserveError):
    """A setting, an option, a file or an address cannot be used; the message says where it stands, and why."""


class BundleError(HexserveError):
    """A bundle is damaged or cannot be served by this version."""


class CompileError(HexserveError):
    """A checkpoint cannot be compiled."""


class UnsupportedModel(CompileError):
    """The checkpoint uses an architecture, rotary type or option that is not implemented; the message names it."""
