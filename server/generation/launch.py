"""What the generation routes share: admission, chats made ready, submitting, answers, clients that leave."""

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from fastapi import Request, Response
from starlette.requests import HTTPConnection

from engine.bundle.answer_format import AnswerFormat
from engine.bundle.manifest import Manifest
from engine.client.engine import Engine, TokenStream
from engine.client.pooling import PooledInput
from engine.errors import CallerError, ContextLengthExceeded
from engine.request import ImagePrompt, Pooling, PromptEmbeds, SamplingParams, ids_of
from engine.request import Request as EngineRequest
from server.generation.answers import Envelope
from server.generation.chat_request import ChatRequest
from server.generation.chat_template import Thinking, chat_tools, check_no_images, thinking_after, thinking_budget
from server.generation.framing import EVENTS, AnswerWriter, EventStream, Framing, deltas_within, frames
from server.generation.params import GenerationParams, chat_params, out_of_order, predicted_tokens
from server.generation.parsing import PLAIN, AnswerParser, ParsedChoice
from server.generation.stream import InputSlots, MergedStream, PooledRun, Resumption
from server.generation.structured_output import AnswerForm, chat_form, placed
from server.http.errors import ClientLeft, Refusal, RequestTimeout, refuse
from server.http.fields import Answer
from server.http.in_flight import InFlight, hold_until_answered
from server.middleware.auth import Caller
from server.models.models import Models, ServedModel, find
from server.observability.metrics import Launched, Metrics, RequestFacts, RequestWatch, facts_of
from server.settings import Settings

if TYPE_CHECKING:
    from server.media.fetch import MediaFetcher

Plain = Mapping[str, Any]  # a message, a tool or the options, as a chat template reads them
Tools = list[dict[str, Any]] | None
ReadPrompt = tuple[int, ...] | PromptEmbeds | ImagePrompt
T = TypeVar("T")
MOST_FORM_BYTES = 16 * 1024 * 1024  # of one request: of all grammars, or of all `prompt_embeds`
MOST_PIXELS_BYTES = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Server:
    settings: Settings
    models: Models
    in_flight: InFlight
    metrics: Metrics
    slots: InputSlots
    media: "MediaFetcher | None"  # None where no images are fetched


@dataclass(frozen=True, slots=True)
class Service:
    """What one request needs of the model that it names: made by `take_model`, which keeps that model loaded.
    model: the name that the request gave, of the model or of one of its adapters."""

    server: Server
    settings: Settings
    engine: Engine
    model: str
    caller: Caller
    facts: RequestFacts  # what is logged and traced of the request
    pinned: Callable[[], AbstractContextManager[None]]  # keeps the model loaded for work that outlives the request
    waited_s: float = 0.0  # until the model was loaded
    resumption: Resumption | None = None  # of a request that comes from a gateway

    @property
    def writes(self) -> AnswerFormat:
        """How the model writes answers; without calls where its chat template shows it no tools."""
        return self.engine.info.manifest.text.writes

    def admit(self, sequences: int) -> None:
        """Busy when `sequences` more cannot be taken; asked before tokenising, so that refusing stays cheap."""
        self.server.in_flight.check_open()
        self.engine.check_room(sequences)

    def envelope(self, prefix: str) -> Envelope:
        """A new answer's identity, or that of the answer which goes on."""
        number, created = uuid.uuid4().hex, int(time.time())
        if self.resumption is not None:
            number, created = self.resumption.id, self.resumption.created
        return Envelope(f"{prefix}{number}", created, self.model, self.engine.info.fingerprint)

    async def chat_prompt(
        self, messages: Sequence[Plain], tools: Sequence[Plain] | None, options: Plain, keep: int | None = None
    ) -> tuple[int, ...] | ImagePrompt:
        """As `Engine.chat_prompt`, with the images that the messages name by URL. Raises what it and `fetched` raise.
        Refusal naming the first image for a model that reads text only, before anything is fetched for it."""
        if self.engine.info.manifest.vision is None:
            check_no_images(messages)
        elif self.server.media is not None:
            messages = await self.server.media.fetched(messages)
        return await self.engine.chat_prompt(messages, tools, options, keep)

    async def constrained(
        self, params: GenerationParams, form: AnswerForm | None, thinking: Thinking | None = None
    ) -> GenerationParams:
        """The parameters with the grammar of a form; InvalidRequest naming the field when it cannot be enforced.
        The form begins behind the model's reasoning, be it opened by the prompt or by the model itself."""
        if form is None:
            return params
        if params.each.denoising is not None:
            raise out_of_order(form.param)
        spec = form.spec if thinking is None else placed(form.spec, self.writes, thinking)
        return params.sampled(grammar=await self.engine.compile_grammar(spec, form.param))

    def launch(
        self, envelope: Envelope, prompts: Sequence[ReadPrompt], params: GenerationParams, param: str
    ) -> MergedStream:
        """Submit every choice of every prompt, all or none. Raises what the engine's `submit` raises."""
        _check_sizes(prompts, params, param)
        if self.resumption is not None and params.each.seed is None:
            params = params.sampled(seed=self.resumption.seed)
        streams: list[TokenStream] = []
        try:
            for index in range(len(prompts) * params.choices):  # OpenAI's, prompt * n + number
                number, choice = divmod(index, params.choices)
                sampling = params.sampling(choice, self._limit(prompts[number], params))
                request = self._request(envelope, index, prompts[number], sampling, params.priority)
                request = replace(request, prediction=params.prediction)
                delivered = self.resumption.of(index) if self.resumption is not None else None
                told = (params.stop, params.include_stop, params.skip_special, delivered, params.once)
                streams.append(self.engine.submit(request, *told))
        except BaseException as error:
            for stream in streams:
                stream.abort()
            if isinstance(error, ContextLengthExceeded):
                raise error.named(param) from None
            raise
        limit = self._limit(prompts[-1], params)
        watch = self._watched(envelope, prompts, params.sampling(0, limit), params.choices)
        return MergedStream(streams, self.server.in_flight, watch, self.settings.request_timeout_s, self.waited_s)

    def _limit(self, prompt: ReadPrompt, params: GenerationParams) -> int:
        return max(1, self.engine.info.max_context - len(prompt)) if params.max_tokens is None else params.max_tokens

    def _request(
        self, envelope: Envelope, index: int, prompt: ReadPrompt, sampling: SamplingParams, priority: int
    ) -> EngineRequest:
        adapter = envelope.model if envelope.model in self.engine.info.adapters else ""
        request = EngineRequest(f"{envelope.id}-{index}", (), sampling, priority, self.caller.cache_salt, adapter)
        match prompt:
            case PromptEmbeds():
                return replace(request, prompt_ids=prompt.placeholders, prompt_embeds=prompt.data)
            case ImagePrompt():
                return replace(request, prompt_ids=prompt.ids, images=prompt.images)
            case tuple():
                return replace(request, prompt_ids=prompt)

    def _watched(
        self, envelope: Envelope, prompts: Sequence[ReadPrompt], sampling: SamplingParams | None, choices: int = 1
    ) -> RequestWatch:
        """The request as metrics and logs see it; its prompts are paid for. sampling: None = it generates nothing."""
        tokens = sum(map(len, prompts))
        most = 0 if sampling is None else sampling.max_tokens
        watch = RequestWatch(self.server.metrics, envelope.model, choices, most)
        self.caller.spend(tokens)
        told = (envelope.id, envelope.model, len(prompts) * choices, tokens, sampling, watch.submitted_at)
        self.facts.launched = Launched(*told)
        if sampling is not None:
            watch.spend, watch.facts = self.caller.spend, self.facts
        return watch

    async def pooled(
        self, envelope: Envelope, inputs: Sequence[PooledInput], pooling: Pooling, priority: int
    ) -> tuple[list[bytes], int]:
        """What the engine gives for each input, and the tokens of all.
        Raises CallerError naming the input at fault, before any is sent."""
        self.server.in_flight.check_open()
        prompts = [await self.engine.pooled_prompt(given) for given in inputs]
        params = SamplingParams(max_tokens=0, seed=0)

        def submit(number: int) -> TokenStream:
            request = self._request(envelope, number, prompts[number], params, priority)
            return self.engine.submit(replace(request, pooling=pooling))

        watch = self._watched(envelope, prompts, None)
        limits = self.settings.request_timeout_s, self.waited_s
        run = PooledRun(submit, len(prompts), self.server.slots, self.server.in_flight, watch, *limits)
        return await run.vectors(), sum(map(len, prompts))


def _check_sizes(prompts: Sequence[ReadPrompt], params: GenerationParams, param: str) -> None:
    """Every choice of every prompt takes its grammar, numbers and pixels to the worker, whose inbox has a bound."""
    choices, sequences = params.choices, len(prompts) * params.choices
    grammars = len(params.each.grammar or "") * sequences
    embeds = choices * sum(len(prompt.data) for prompt in prompts if isinstance(prompt, PromptEmbeds))
    images = [image for prompt in prompts if isinstance(prompt, ImagePrompt) for image in prompt.images]
    pixels = choices * sum(len(image.pixels) for image in images)
    for size, most, told, field in (
        (grammars, MOST_FORM_BYTES, f"The grammar of this form times {sequences} choices has {grammars} bytes", "n"),
        (embeds, MOST_FORM_BYTES, f"'prompt_embeds' times {choices} choices has {embeds} bytes", "prompt_embeds"),
        (pixels, MOST_PIXELS_BYTES, f"The images times {choices} choices have {pixels} bytes of pixels", param),
    ):
        if size > most:
            raise refuse(f"{told}, the limit is {most}.", field, "invalid_value")


def server_of(request: HTTPConnection) -> Server:
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
    model = named_model(server, name, check)
    hold_until_answered(request.scope, model.pinned())
    began_s = time.monotonic()
    engine = server.models.ready(model)
    if engine is None:
        engine = await until_left(request, loaded_engine(server, model))
        check(engine.info.manifest)
    return Service(
        server=server,
        settings=model.settings,
        engine=engine,
        model=model.name if name is None else name,
        caller=request.scope["state"]["caller"],
        facts=facts_of(request.scope),
        pinned=model.pinned,
        waited_s=time.monotonic() - began_s,
        resumption=resumption_of(request),
    )


def resumption_of(request: Request) -> Resumption | None:
    """What a gateway gave with a request; None for one that comes from elsewhere."""
    return cast(Resumption | None, request.scope.get("state", {}).get("resumption"))


def named_model(server: Server, name: str | None, check: Callable[[Manifest], object]) -> ServedModel:
    """The model of that name (None: the first). Raises what `check` does, if its bundle is known, and Refusal 404."""
    known = server.models.models
    model = known[0] if name is None else find(known, name)
    if model.manifest is not None:
        check(model.manifest)
    return model


async def loaded_engine(server: Server, model: ServedModel) -> Engine:
    """The engine of a pinned model that may not be ready; RequestTimeout when the request may not live that long."""
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

    async def collected() -> None:
        while not writer.finished:
            writer.chunks(await stream.deltas())

    try:
        if is_stream:
            keep_alive_s = server_of(request).settings.keep_alive_s
            first = await until_left(request, deltas_within(stream, keep_alive_s))
            if framing is EVENTS and resumption_of(request) is not None:
                framing = replace(framing, notes_tokens=True)
            idle_s, ping_s = (keep_alive_s, 0.0) if framing.idle else (0.0, keep_alive_s)
            return EventStream(frames(stream, first, writer, framing, idle_s), ping_s, stream.abort, framing)
        await until_left(request, collected())
    except BaseException:
        stream.abort()
        raise
    stream.abort()
    return await written_aside(writer.answer)


def written(answer: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(answer), status, media_type="application/json")


async def written_aside(make: Callable[[], Answer]) -> Response:
    """The same, made off the loop: thousands of vectors, or the log-probabilities of a long prompt, take a second."""
    return await asyncio.get_running_loop().run_in_executor(None, lambda: written(make()))


async def until_left(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled (ClientLeft) as soon as the client is gone. The body must be read."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.create_task(work), asyncio.create_task(left())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        return working.result()
    finally:
        leaving.cancel()
        working.cancel()


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """What `Service.launch` takes, and how the answer is taken apart."""

    prompt: tuple[int, ...] | ImagePrompt
    params: GenerationParams
    thinking: Thinking
    answer: AnswerFormat | None
    tools: Tools

    def parsed_choices(self) -> list[ParsedChoice]:
        thinking, answer, may_call = self.thinking, self.answer or PLAIN, self.tools is not None
        functions = [tool["function"] for tool in self.tools or ()]
        schemas = {function["name"]: function.get("parameters") or {} for function in functions}
        is_plain = not may_call and answer.content is None
        form, prefilled = (PLAIN, "") if is_plain else (answer, thinking.prefilled)
        told = (form, may_call, schemas, prefilled, thinking.markers, thinking.is_open)
        return [ParsedChoice(AnswerParser(*told)) for _ in range(self.params.choices)]


async def prepared_chat(
    request: Request, service: Service, body: ChatRequest, messages: Callable[[], Sequence[Plain]], options: Plain
) -> PreparedChat:
    """Render and tokenise the messages, and compile the grammar of the answer's form.
    messages, options: what the chat template reads; the messages are made once the body is checked and admitted. Raises
    CallerError and Refusal naming a field, Busy, ClientLeft."""
    engine, (params, tools, form) = service.engine, _checked(body, service)
    prompt = await until_left(request, service.chat_prompt(messages(), tools, options, params.keep))
    prediction = await until_left(request, predicted_tokens(body.prediction, engine))
    thinking = thinking_after(ids_of(prompt), engine)
    budget = thinking_budget(body.thinking_token_budget, thinking, engine)
    params = replace(params.sampled(thinking_budget=budget), prediction=prediction)
    params = await until_left(request, service.constrained(params, form, thinking))
    return PreparedChat(prompt, params, thinking, service.writes, tools)


async def prepared_text(request: Request, service: Service, body: ChatRequest, text: str) -> PreparedChat:
    """The same for a prompt that no chat template renders: all that follows it is plain text."""
    params, _, form = _checked(body, service)
    prompt = await until_left(request, service.engine.text_prompt(text, params.keep))
    params = await until_left(request, service.constrained(params, form))
    return PreparedChat(prompt, params, Thinking(None), None, None)


def _checked(body: ChatRequest, service: Service) -> tuple[GenerationParams, Tools, AnswerForm | None]:
    params = chat_params(body, service.engine, service.settings)
    service.admit(params.choices)
    tools = chat_tools(body, service.writes)
    return params, tools, chat_form(body, service.writes if tools is not None else None)


@contextmanager
def field_aliases(name_of: Callable[[str], str]) -> Iterator[None]:
    """What is refused inside names the field of this format. name_of: its name for a field of the chat route."""

    def renamed(message: str, param: str | None) -> tuple[str, str | None]:
        if param is None:
            return message, None
        return message.replace(f"'{param}'", f"'{name_of(param)}'"), name_of(param)

    try:
        yield
    except ContextLengthExceeded as error:
        raise error.named(name_of(error.param or "messages")) from None
    except CallerError as error:
        message, error.param = renamed(str(error), error.param)
        error.args = (message,)
        raise
    except Refusal as refusal:
        message, param = renamed(refusal.error.message, refusal.error.param)
        raise Refusal(replace(refusal.error, message=message, param=param)) from None
