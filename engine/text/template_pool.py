"""Chat templates render in processes of their own: one that never ends costs its own request and nobody else. Each
process renders one conversation at a time; one that overruns its time or dies is replaced. The first one starts with
the engine, so no request waits for it."""

from collections.abc import Iterable, Sequence
from functools import partial

from engine.errors import BundleError, EngineFailure, InvalidRequest
from engine.isolation.helper_pool import Answer, Failure, HelperLimits, HelperPool
from engine.processes import module_command
from engine.text.rendering import Rendered, RenderRequest, TemplateOpening, decode, encode, encode_request, too_slow

RENDERER = tuple(module_command("engine.text.renderer"))
LIMITS = HelperLimits()


class TemplatePool(HelperPool):
    """All methods belong to one event loop. command: starts a renderer. `start` raises BundleError for a template."""

    def __init__(
        self, source: str, limits: HelperLimits = LIMITS, command: Sequence[str] = RENDERER, label: str = ""
    ) -> None:
        opening = encode(TemplateOpening(source, limits.opening_s, limits.budget_s))
        accept = partial(_accept, opening_s=limits.opening_s)
        super().__init__("the process of the chat template", command, opening, accept, limits, label)

    async def render(self, request: bytes) -> bytes:
        """The encoded answer to an encoded `RenderRequest`. InvalidRequest when it takes too long or kills the process,
        EngineFailure when none can be started, Busy when the server is shutting down."""
        try:
            answer = await self.ask(request)
        except BundleError as error:  # it could be compiled at the start
            raise EngineFailure(f"The chat template cannot be used any more: {error}") from None
        if answer is Failure.DIED:
            raise InvalidRequest(
                "The chat template cannot render these messages within the limits of this server.", "messages"
            )
        if isinstance(answer, Failure):
            raise InvalidRequest(too_slow(self._budget_s), "messages")
        return answer


def _accept(answer: Answer, opening_s: float) -> None:
    if answer is Failure.DIED:
        raise BundleError("the chat template cannot be compiled within the limits of this server")
    if isinstance(answer, Failure):
        raise BundleError(f"the chat template cannot be compiled within {opening_s:g} s")
    if error := decode(answer, Rendered).error:
        raise BundleError(error)


async def render_all(source: str, requests: Iterable[RenderRequest], limits: HelperLimits = LIMITS) -> list[Rendered]:
    """Render one after the other until one passes a bound: its answer is an error and the last. BundleError."""
    pool = TemplatePool(source, limits)
    found: list[Rendered] = []
    try:
        await pool.start()
        for request in requests:
            found.append(decode(await pool.render(encode_request(request)), Rendered))
    except InvalidRequest as error:
        found.append(Rendered(error=str(error)))
    finally:
        await pool.close()
    return found
