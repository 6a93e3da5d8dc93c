"""A conversation as tokens: each query goes on from all before it, any point can be noted and gone back to."""

from collections.abc import AsyncIterator, Sequence

from engine.client.engine import Engine
from engine.request import Delta, Request, SamplingParams


class Dialog:
    """Owns the history. What was computed for it is found again in the prefix cache, so going back costs no memory.

    One query at a time; a second one, or `rewind` meanwhile, raises ValueError.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._name = name
        self._tokens: list[int] = []
        self._is_busy = False

    @property
    def checkpoint(self) -> int:
        """Where the conversation stands: how many tokens it has."""
        return len(self._tokens)

    def rewind(self, checkpoint: int) -> None:
        """Forget every token after an earlier `checkpoint`. ValueError for one that was not reached."""
        self._check_idle()
        if not 0 <= checkpoint <= len(self._tokens):
            raise ValueError(f"the dialog has {len(self._tokens)} tokens, it cannot go back to {checkpoint}")
        del self._tokens[checkpoint:]

    async def query(
        self, prompt_ids: Sequence[int], params: SamplingParams, stop: tuple[str, ...] = ()
    ) -> AsyncIterator[Delta]:
        """Say something and stream the answer; both belong to the history from then on, also of an answer cut short.

        Raises what `Engine.submit` and its stream raise; then the history holds what was delivered.
        """
        self._check_idle()
        request = Request(self._name, (*self._tokens, *prompt_ids), params)
        stream = self._engine.submit(request, stop)
        self._tokens.extend(prompt_ids)
        self._is_busy = True
        try:
            async for delta in stream:
                self._tokens.extend(delta.token_ids)
                yield delta
        finally:
            stream.abort()
            self._is_busy = False

    def _check_idle(self) -> None:
        if self._is_busy:
            raise ValueError("the dialog is answering a query")
