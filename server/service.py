"""What the generation routes share: admission, submitting a request's sequences, answers, clients that leave."""

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, cast

import msgspec
from fastapi import Request, Response

from engine.bundle.answer_format import AnswerFormat
from engine.bundle.manifest import Manifest
from engine.errors import ContextLengthExceeded
from engine.pooling.prompts import PooledInput
from engine.request import Pooling, PromptEmbeds, SamplingParams
from engine.request import Request as EngineRequest
from server.engine_seam import EngineLike, TokenStreamLike
from server.http.errors import ClientLeft, RequestTimeout, refuse
from server.http.guard.caller import Caller
from server.http.held import hold_until_answered
from server.http.in_flight import InFlight
from server.http.merged_stream import ChoiceDelta, MergedStream
from server.http.metrics import Metrics
from server.http.pooled_run import InputSlots, PooledRun
from server.http.request_facts import Launched, RequestFacts, facts_of
from server.http.resumption import Resumption
from server.http.sse import EVENTS, ChunkWriter, Framing, StreamResponse, deltas_within
from server.models.models import Models, find
from server.models.served_model import ServedModel
from server.requests.chat_template_options import Thinking
from server.requests.denoising import out_of_order
from server.requests.params import GenerationParams
from server.requests.prompts import ReadPrompt
from server.requests.structured_output import AnswerForm, placed
from server.settings import Settings
from server.writers.usage import Envelope

T = TypeVar("T")
MOST_GRAMMARS_BYTES = MOST_EMBEDS_BYTES = 16 * 1024 * 1024  # of one request


class AnswerWriter(ChunkWriter, Protocol):
    """Writes chunks, or the whole answer from all deltas."""

    def take(self, deltas: Sequence[ChoiceDelta]) -> None:
        """Keep deltas for `answer`."""

    def answer(self) -> dict[str, Any]:
        """The body of an answer that is not streamed."""


@dataclass(frozen=True, slots=True)
class Server:
    """The parts of a running server that all its models share, wired by `create_app`."""

    settings: Settings
    models: Models
    in_flight: InFlight
    metrics: Metrics
    slots: InputSlots


@dataclass(frozen=True, slots=True)
class Service:
    """What one request needs of the model that it names: made by `take_model`, which keeps that model loaded.

    model: the name that the request gave, of the model or of one of its adapters.
    """

    settings: Settings
    engine: EngineLike
    in_flight: InFlight
    metrics: Metrics
    slots: InputSlots
    model: str
    caller: Caller | None
    pinned: Callable[[], AbstractContextManager[None]]  # keeps the model loaded for work that outlives the request
    waited_s: float = 0.0  # until the model was loaded
    resumption: Resumption | None = None  # of a request that comes from a front
    facts: RequestFacts | None = None  # what is logged and traced of the request

    @property
    def writes(self) -> AnswerFormat:
        """How the model writes answers; without calls where its chat template shows it no tools."""
        return self.engine.info.manifest.text.writes

    def admit(self, sequences: int) -> None:
        """Busy when `sequences` more cannot be taken; asked before tokenising, so that refusing stays cheap."""
        self.in_flight.check_open()
        self.engine.check_room(sequences)

    def envelope(self, prefix: str) -> Envelope:
        """A new answer's identity, or that of the answer which goes on."""
        number, created = uuid.uuid4().hex, int(time.time())
        if self.resumption is not None:
            number, created = self.resumption.id, self.resumption.created
        return Envelope(f"{prefix}-{number}", created, self.model, self.engine.info.fingerprint)

    async def constrained(
        self, params: GenerationParams, form: AnswerForm | None, thinking: Thinking | None = None
    ) -> GenerationParams:
        """The parameters with the grammar of a form; InvalidRequest naming the field when it cannot be enforced.

        The form begins behind the model's reasoning, be it opened by the prompt or by the model itself.
        """
        if form is None:
            return params
        if params.denoising is not None:
            raise out_of_order(form.param)
        spec = form.spec if thinking is None else placed(form.spec, self.writes, thinking)
        return replace(params, grammar=await self.engine.compile_grammar(spec, form.param))

    def launch(
        self, envelope: Envelope, prompts: Sequence[ReadPrompt], params: GenerationParams, param: str
    ) -> MergedStream:
        """Submit every choice of every prompt, all or none. Raises what the engine's `submit` raises."""
        window, adapters = self.engine.info.max_context, self.engine.info.adapters
        _check_grammars(params, len(prompts) * params.choices)
        _check_embeds(prompts, params.choices)
        if self.resumption is not None and params.seed is None:
            params = replace(params, seed=self.resumption.seed)
        streams: list[TokenStreamLike] = []
        limit = 1
        salt = self.caller.cache_salt if self.caller is not None else b""
        adapter = envelope.model if envelope.model in adapters else ""
        try:
            for number, given in enumerate(prompts):
                prompt, embeds = (given.placeholders, given.data) if isinstance(given, PromptEmbeds) else (given, b"")
                limit = max(1, window - len(prompt)) if params.max_tokens is None else params.max_tokens
                for choice in range(params.choices):
                    index = number * params.choices + choice
                    name = f"{envelope.id}-{index}"
                    sampling = params.sampling(choice, limit)
                    request = EngineRequest(
                        name, prompt, sampling, params.priority, salt, adapter, params.prediction, embeds
                    )
                    delivered = self.resumption.of(index) if self.resumption is not None else None
                    told = (params.stop, params.include_stop, params.skip_special, delivered)
                    streams.append(self.engine.submit(request, *told))
        except BaseException as error:
            for stream in streams:
                stream.abort()
            if isinstance(error, ContextLengthExceeded):
                raise error.named(param) from None
            raise
        watch = self.metrics.watch(params.choices, limit, envelope.model)
        if self.caller is not None:
            self.caller.spend(sum(map(len, prompts)))
            watch.spend = self.caller.spend
        if self.facts is not None:
            tokens, first = sum(map(len, prompts)), params.sampling(0, limit)
            self.facts.launched = Launched(envelope.id, envelope.model, len(streams), tokens, first, watch.submitted_at)
            watch.facts = self.facts
        return MergedStream(streams, self.in_flight, watch, self.settings.request_timeout_s, self.waited_s)

    async def pooled(
        self, envelope: Envelope, inputs: Sequence[PooledInput], pooling: Pooling, priority: int
    ) -> "Pooled":
        """What the engine gives for each input. Raises CallerError naming the input at fault, before any is sent."""
        self.in_flight.check_open()
        prompts = [await self.engine.pooled_prompt(given) for given in inputs]
        salt = self.caller.cache_salt if self.caller is not None else b""
        adapter = envelope.model if envelope.model in self.engine.info.adapters else ""
        params = SamplingParams(max_tokens=0, seed=0)

        def submit(number: int) -> TokenStreamLike:
            name = f"{envelope.id}-{number}"
            return self.engine.submit(
                EngineRequest(name, prompts[number], params, priority, salt, adapter, pooling=pooling)
            )

        tokens = sum(map(len, prompts))
        if self.caller is not None:
            self.caller.spend(tokens)
        watch = self.metrics.watch(1, 0, envelope.model)
        if self.facts is not None:
            self.facts.launched = Launched(envelope.id, envelope.model, len(prompts), tokens, None, watch.submitted_at)
        limits = self.settings.request_timeout_s, self.waited_s
        run = PooledRun(submit, len(prompts), self.slots, self.in_flight, watch, *limits)
        return Pooled(await run.vectors(), tokens)


@dataclass(frozen=True, slots=True)
class Pooled:
    """What the engine gave for the inputs of a request, and their tokens in all."""

    vectors: list[bytes]
    tokens: int


def _check_grammars(params: GenerationParams, sequences: int) -> None:
    """Every sequence brings its grammar to the worker, whose inbox has a bound."""
    size = len(params.grammar or "") * sequences
    if size > MOST_GRAMMARS_BYTES:
        message = (
            f"The grammar of this form times {sequences} choices has {size} bytes, the limit is {MOST_GRAMMARS_BYTES}."
        )
        raise refuse(message, "n", "invalid_value")


def _check_embeds(prompts: Sequence[ReadPrompt], choices: int) -> None:
    """Each choice takes the numbers to the worker once more."""
    size = choices * sum(len(prompt.data) for prompt in prompts if isinstance(prompt, PromptEmbeds))
    if size > MOST_EMBEDS_BYTES:
        message = f"'prompt_embeds' times {choices} choices has {size} bytes, the limit is {MOST_EMBEDS_BYTES}."
        raise refuse(message, "prompt_embeds", "invalid_value")


def server_of(request: Request) -> Server:
    """What the app has that a request came to."""
    return cast(Server, request.app.state.server)


def any_model(manifest: Manifest) -> None:
    """No check: a request that a model of any task answers."""


async def take_model(request: Request, name: str | None, check: Callable[[Manifest], object] = any_model) -> Service:
    """The service of the model of that name (None: the first), loaded, and kept so until the answer has ended.

    check: raises Refusal for a model that cannot do what is asked; before the model is loaded, if its bundle is known.
    Refusal 404 for a name that is not served, Busy when the model cannot be loaded now, ClientLeft. The body must be
    read.
    """
    server = server_of(request)
    known = server.models.models
    model = known[0] if name is None else find(known, name)
    if model.manifest is not None:
        check(model.manifest)
    hold_until_answered(request.scope, model.pinned())
    began_s = time.monotonic()
    engine = server.models.ready(model)
    if engine is None:
        engine = await until_left(request, _loaded(server, model))
        check(engine.info.manifest)
    return Service(
        settings=model.settings,
        engine=engine,
        in_flight=server.in_flight,
        metrics=server.metrics,
        slots=server.slots,
        model=model.name if name is None else name,
        caller=request.scope["state"].get("caller"),
        pinned=model.pinned,
        waited_s=time.monotonic() - began_s,
        resumption=resumption_of(request),
        facts=facts_of(request.scope),
    )


def resumption_of(request: Request) -> Resumption | None:
    """What a front gave with a request; None for one that comes from elsewhere."""
    return cast(Resumption | None, request.scope.get("state", {}).get("resumption"))


async def _loaded(server: Server, model: ServedModel) -> EngineLike:
    """The engine of a model that is not ready yet; RequestTimeout when the request may not live that long."""
    server.in_flight.check_open()
    timeout_s = server.settings.request_timeout_s
    try:
        async with asyncio.timeout(timeout_s or None):
            return await server.models.loaded(model)
    except TimeoutError:
        raise RequestTimeout.after(timeout_s) from None


async def answer(
    request: Request, stream: MergedStream, writer: AnswerWriter, is_stream: bool, framing: Framing = EVENTS
) -> Response:
    """Stream or collect. Until the first delta (or one keep-alive interval) an error still has its HTTP status."""
    try:
        if is_stream:
            keep_alive_s = server_of(request).settings.keep_alive_s
            first = await until_left(request, deltas_within(stream, keep_alive_s))
            if framing is EVENTS and resumption_of(request) is not None:
                framing = replace(framing, notes_tokens=True)
            return StreamResponse(stream, first, writer, keep_alive_s, framing)
        await until_left(request, _collect(stream, writer))
    except BaseException:
        stream.abort()
        raise
    stream.abort()
    # Off the loop: the log-probabilities of a long prompt take a second.
    body = await asyncio.get_running_loop().run_in_executor(None, lambda: msgspec.json.encode(writer.answer()))
    return Response(body, media_type="application/json")


async def until_left(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled (ClientLeft) as soon as the client is gone. The body must be read."""
    working = asyncio.create_task(work)
    leaving = asyncio.create_task(_left(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        return working.result()
    finally:
        leaving.cancel()
        working.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _collect(stream: MergedStream, writer: AnswerWriter) -> None:
    while not writer.finished:
        writer.take(await stream.deltas())
