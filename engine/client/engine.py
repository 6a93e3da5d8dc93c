"""The engine as the server sees it: prompts to tokens, submit, stream deltas, abort. Owns the text side (tokenizer,
processes of the chat template), the admission bounds and the open streams; the worker process belongs to the
supervisor. Everything here runs on one event loop except tokenisation and templates."""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from engine import messages
from engine.bundle.answer_format import Markers
from engine.bundle.manifest import Manifest
from engine.client.admission import AdmissionControl
from engine.client.chat_prompts import ChatPrompts, check_embeds, decode_embeds, width_for
from engine.client.devices import DeviceGroup, open_workers
from engine.client.info import ClientLimits, EngineInfo, EngineState, engine_info
from engine.client.placement import CHECK_TEXT, CHECKED_TOKENS
from engine.client.pooling import PooledInput
from engine.client.recovery import check_delivered
from engine.client.step_feed import StepWatch
from engine.client.token_stream import KEPT_REQUESTS, TokenStream, timings_line
from engine.config import EngineConfig
from engine.errors import Busy, ContextLengthExceeded, EngineFailure, HexserveError, InvalidRequest
from engine.grammar.compiler_pool import GrammarCompilerPool, compiler_command
from engine.grammar.spec import GrammarSpec
from engine.isolation.machine import give_back_freed
from engine.logs.handler import server_log
from engine.request import Delivered, ImagePrompt, PromptEmbeds, Request, RequestTimings, ThinkingBudget, TokenEvent
from engine.speech.live import AudioPool, Recording
from engine.text.answer_finding import load_described
from engine.text.assembler import StopRules
from engine.text.prompt import PromptMaker
from engine.text.rendering import TextFacts

__all__ = ["ClientLimits", "Engine", "EngineInfo", "EngineState", "TokenStream"]

TEXT_THREADS = 2
DEFAULT_LIMITS = ClientLimits()
T = TypeVar("T")


class Engine:
    """One bundle served by one worker process. All methods belong to the event loop that ran `start`. label: the
    model's name in log lines, '' = the server has this model only."""

    def __init__(
        self,
        config: EngineConfig,
        limits: ClientLimits = DEFAULT_LIMITS,
        command: Sequence[str] | None = None,
        label: str = "",
    ) -> None:
        self._log = server_log(label)
        self._label, self._config, self._limits = label, config, limits
        self._supervisor = open_workers(config, command, label, self._deliver, self._fail)
        self._admission = AdmissionControl(limits.max_queued, limits.max_queued_tokens)
        self._streams: dict[str, TokenStream] = {}
        self._submitted = 0
        self._empty = asyncio.Event()
        self.finished: deque[RequestTimings] = deque(maxlen=KEPT_REQUESTS)
        self._threads = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="hexserve-text")
        self._turn = asyncio.Lock()
        self._prompts: PromptMaker | None = None
        self._chats: ChatPrompts | None = None
        self._compiler_pool: GrammarCompilerPool | None = None
        self._audio = AudioPool(label)  # starts no process before it is asked
        self._info: EngineInfo | None = None

    async def start(self) -> None:
        """Load manifest, tokenizer and template, start the worker, return when it is ready. BundleError when the bundle
        cannot be served, EngineFailure when the worker does not come up; then, or cancelled, nothing is left
        running."""
        try:
            self._refuse_if_closing()
            folder = Path(self._config.bundle)
            manifest = await self._in_thread(lambda: load_described(folder))
            ready = await self._load(folder, manifest)
        except BaseException:
            await self.close()
            raise
        self._info = engine_info(manifest, ready, self._config)

    async def _load(self, folder: Path, manifest: Manifest) -> messages.Ready:
        """The worker opens its graphs while the text side is loaded; if that fails, its error is the one to hear."""
        starting = asyncio.create_task(self._supervisor.start())
        try:
            await self._load_text(folder, manifest)
        except Busy:  # closed meanwhile: the worker's start ends with that as well
            return await starting
        except BaseException:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            raise
        ready = await starting
        if isinstance(self._supervisor, DeviceGroup):
            ids = await self.tokenize(CHECK_TEXT, add_special=True)
            ready = await self._supervisor.check(ids[:CHECKED_TOKENS])
        return ready

    async def _load_text(self, folder: Path, manifest: Manifest) -> None:
        self._prompts = await self._in_thread(lambda: _load_prompts(folder, manifest, self._log))
        self._chats = ChatPrompts(self._prompts, manifest.vision, self._limits.helpers, self._label, self._in_thread)
        await self._chats.start()
        if manifest.text.stop_ids:  # without an end token nothing could end a complete answer
            command = compiler_command(folder, manifest)
            self._compiler_pool = GrammarCompilerPool(command, self._limits.helpers, self._label)

    async def close(self, drain_s: float = 0.0) -> None:
        """Stop: take nothing new, give unfinished requests up to `drain_s` seconds, end the worker. May be repeated."""
        self._supervisor.drain()
        if drain_s > 0 and self._streams:
            self._empty.clear()
            try:
                await asyncio.wait_for(self._empty.wait(), drain_s)
            except TimeoutError:
                self._log.warning("%d requests did not finish within %.1f s of draining", len(self._streams), drain_s)
        was_running = self.state is not EngineState.STOPPED
        for part in (self._chats, self._supervisor, self._audio):
            if part is not None:
                await part.close()
        if self._compiler_pool is not None:  # perhaps made meanwhile, by a start that is under way
            await self._compiler_pool.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        # Large, and an engine is part of a circle: they would wait for the garbage collector.
        self._prompts = self._chats = None
        if was_running and self._info is not None and self.finished:
            self._log.info("%s", timings_line(self.finished))

    @property
    def state(self) -> EngineState:
        """Where the engine is in its life; a worker may be ready before the text side is."""
        state, is_known = self._supervisor.state, self._info is not None
        return state if is_known or state not in (EngineState.READY, EngineState.RESTARTING) else EngineState.LOADING

    @property
    def device(self) -> str:
        """What computes now; Busy while it still loads."""
        return self._supervisor.device if isinstance(self._supervisor, DeviceGroup) else self.info.device

    @property
    def info(self) -> EngineInfo:
        """What is served; Busy while it still loads."""
        if self._info is None:
            raise Busy.loading()
        return self._info

    @property
    def stats(self) -> messages.Stats:
        """Counters summed over all workers so far, gauges of the current one."""
        return self._supervisor.stats

    @property
    def restarts(self) -> int:
        return self._supervisor.restarts

    @property
    def unfinished(self) -> int:
        return len(self._streams)

    def watch_steps(self) -> StepWatch:
        """Every step from now on; whoever asked ends it. Busy when too many watch."""
        return self._supervisor.steps.open()

    def worker_pid(self) -> int | None:
        """Process id of the worker, None while there is none."""
        return self._supervisor.pid

    async def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        keep: int | None = None,
    ) -> tuple[int, ...] | ImagePrompt:
        """Render the chat template and tokenise; of a longer prompt only the last `keep` tokens are used. An image is a
        part of a content with "type": "image", its "url" and perhaps "detail" and the "param" to name. Raises
        InvalidRequest (template's own complaint, too slow, empty prompt, unknown option, an image that cannot be read)
        and ContextLengthExceeded."""
        limit = self.info.max_context
        self._text()
        assert self._chats is not None
        prompt = await self._chats.prompt(messages, tools, options or {}, limit, keep)
        self.check_ids(prompt.ids if isinstance(prompt, ImagePrompt) else prompt, "messages")
        return prompt

    async def text_prompt(self, text: str, keep: int | None = None) -> tuple[int, ...]:
        """Tokenise a plain prompt, in a thread; special tokens written in it count as such, BOS is never doubled."""
        maker, limit = self._text(), self.info.max_context
        return await self._in_thread(lambda: self.check_ids(maker.text(text, limit, keep), "prompt"))

    async def embeds_prompt(self, encoded: str, param: str) -> PromptEmbeds:
        """A prompt of embeddings, base64 of a .npy file, read in a thread; InvalidRequest or ContextLengthExceeded."""
        info = self.info
        width = width_for(info.manifest, param)
        return await self._in_thread(lambda: decode_embeds(encoded, width, info.max_context, param))

    async def hear(self, data: bytes, finds_speech: bool) -> Recording:
        """The sound of a file, decoded in a process of its own; InvalidRequest naming 'file'."""
        return await self._audio.hear(data, finds_speech)

    async def pooled_prompt(self, given: PooledInput) -> tuple[int, ...]:
        """Tokens of what becomes a vector or a score; InvalidRequest or ContextLengthExceeded naming its field."""
        tokenizer, info = self._text().tokenizer, self.info
        return await self._in_turn(lambda: given.ids(tokenizer, info.manifest, info.max_input))

    def thinking_budget(self, tokens: int, is_open: bool) -> ThinkingBudget | None:
        """The bound as this model's tokens; None for a model that does not reason. is_open: the prompt opened it."""
        markers = self.info.manifest.text.writes.reasoning
        if markers is None:
            return None
        encode = self._text().tokenizer.encode
        opening, closing = (encode(text, allow_special=True) for text in (markers.opening, markers.closing))
        return ThinkingBudget(tokens, () if is_open else opening, closing)

    def token_pieces(self, ids: Sequence[int]) -> tuple[bytes, ...]:
        """The bytes each token stands for, special tokens included."""
        return tuple(map(self._text().tokenizer.token_bytes, ids))

    async def tokenize(self, text: str, add_special: bool) -> tuple[int, ...]:
        """Token ids of a text of any length, with BOS if asked for and wanted; InvalidRequest for lone surrogates."""
        tokenizer = self._text().tokenizer
        ids = await self._in_turn(lambda: tokenizer.encode(text, allow_special=True))
        return tokenizer.with_bos(ids) if add_special else ids

    async def detokenize(self, ids: Sequence[int]) -> str:
        tokenizer = self._text().tokenizer
        return await self._in_turn(lambda: tokenizer.decode(tuple(ids), skip_special=False))

    async def token_names(self, ids: Sequence[int]) -> tuple[str, ...]:
        tokenizer = self._text().tokenizer
        return await self._in_turn(lambda: tuple(map(tokenizer.token_name, ids)))

    @property
    def text_facts(self) -> TextFacts:
        """What the bundle says about its tokenizer; Busy while it loads."""
        maker, spec = self._text(), self.info.manifest.text
        specials = tuple(maker.tokenizer.special_tokens)
        return TextFacts(spec.bos_token, spec.eos_token, spec.add_bos, specials, maker.template_source)

    async def compile_grammar(self, spec: GrammarSpec, param: str) -> str:
        """Compile the form of an answer in another process, for `SamplingParams.grammar`. Raises InvalidRequest naming
        `param` when it is invalid, too large or takes too long."""
        if self._compiler_pool is None:
            self._text()
            raise InvalidRequest("This model has no end token: the form of its answers cannot be enforced.", param)
        return await self._compiler_pool.compile(spec, param)

    def check_ids(self, ids: Sequence[int], param: str) -> tuple[int, ...]:
        """Return `ids` as a tuple; InvalidRequest unless all are token ids, ContextLengthExceeded when too many."""
        info = self.info
        if not ids:
            raise InvalidRequest(f"'{param}' is empty: at least one token is needed.", param)
        if len(ids) >= info.max_context:
            raise ContextLengthExceeded(info.max_context, len(ids), 1, param)
        for index, token_id in enumerate(ids):
            if type(token_id) is not int or not 0 <= token_id < info.vocab:
                told = f"'{param}[{index}]' is {repr(token_id)[:40]}, not a token id of this model"
                raise InvalidRequest(f"{told} (0 to {info.vocab - 1}).", param)
        return tuple(ids)

    def check_room(self, requests: int) -> None:
        """Raise what `submit` would for so many requests of any length: Busy, or EngineFailure when it is dead."""
        self._check_takes_requests()
        self._supervisor.check_room()
        self._admission.check_room(requests)

    def submit(
        self,
        request: Request,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        delivered: Delivered | None = None,
        once: Markers | None = None,
    ) -> TokenStream:
        """Queue a request and return its stream, which goes on behind `delivered` if another server began the answer.
        once: the text ends where what these markers enclose comes a second time in the same words. Raises Busy when the
        queue is full or the engine takes nothing, ContextLengthExceeded when prompt plus max_tokens cannot fit,
        EngineFailure when the engine is dead."""
        self._check_takes_requests()
        info, prompt_tokens = self.info, len(request.prompt_ids)
        if delivered is not None:
            check_delivered(delivered, request.params.max_tokens, info.vocab)
        if prompt_tokens + request.params.max_tokens > info.max_context:
            raise ContextLengthExceeded(info.max_context, prompt_tokens, request.params.max_tokens)
        check_embeds(info.manifest, request)
        self._supervisor.check_room(request)
        # A number of our own, because events of an aborted request may still be under way when its id is used again.
        self._submitted += 1
        request = replace(request, id=f"{request.id}#{self._submitted}")
        if request.pooling is None:  # whoever sends texts by the thousand has a bound of its own on them
            self._admission.enter(request.id, prompt_tokens)
        params, stop_ids = request.params, info.manifest.text.stop_ids
        if params.seed is None:  # drawn here so that the next worker would draw the same tokens
            params = replace(params, seed=secrets.randbits(32))
        if params.grammar is not None:  # a complete answer must be able to end
            params = replace(params, stop_token_ids=tuple(dict.fromkeys((*params.stop_token_ids, *stop_ids))))
        request = replace(request, params=params)
        tags = None if once is None else (once.opening, once.closing)
        rules = StopRules(stop, include_stop, skip_special, stop_ids, tags)
        stream = TokenStream(request, self._text().tokenizer, rules, self._limits.stream_buffer, self._ended)
        self._streams[request.id] = stream
        if delivered is None or stream.resume(delivered):
            self._supervisor.submit(request, delivered.token_ids if delivered is not None else ())
        return stream

    def _check_takes_requests(self) -> None:
        match self.state:
            case EngineState.READY | EngineState.RESTARTING:
                return
            case EngineState.LOADING:
                raise Busy.loading()
            case EngineState.DEAD:
                raise EngineFailure(f"The engine is not running: {self._supervisor.death_reason}")
            case EngineState.DRAINING | EngineState.STOPPED:
                raise Busy.shutting_down()

    def _refuse_if_closing(self) -> None:
        if self.state is EngineState.STOPPED:  # the thread pool is shut down
            raise Busy.shutting_down()

    def _text(self) -> PromptMaker:
        if self._prompts is None:
            self._refuse_if_closing()
            raise Busy.loading()
        return self._prompts

    async def _in_turn(self, work: Callable[[], T]) -> T:
        """Long texts go one at a time, so that prompts always find a free thread."""
        async with self._turn:
            return await self._in_thread(work)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        self._refuse_if_closing()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise Busy.shutting_down() from None  # nobody cancelled us: the pool was shut down before its turn came

    def _deliver(self, event: TokenEvent) -> None:
        if (stream := self._streams.get(event.id)) is not None:
            self._admission.started(event.id)
            stream.feed(event)

    def _fail(self, request_id: str, error: HexserveError) -> None:
        if (stream := self._streams.get(request_id)) is not None:
            stream.fail(error)

    def _ended(self, stream: TokenStream, timings: RequestTimings | None) -> None:
        """Called by a stream once, when nothing more will come; `timings` is None unless it finished."""
        del self._streams[stream.id]
        self._supervisor.abort(stream.id)  # does nothing when the worker itself finished it
        self._admission.leave(stream.id, finished=timings is not None)
        if timings is not None:
            self.finished.append(timings)
            self._log.debug("%s %s", stream.id, timings.line())
        if not self._streams:
            self._empty.set()


def _load_prompts(folder: Path, manifest: Manifest, log: logging.Logger) -> PromptMaker:
    placeholder = manifest.vision.placeholder if manifest.vision is not None else ""
    maker, vocab = PromptMaker.load(folder, manifest.text, placeholder), manifest.model.vocab
    if maker.tokenizer.vocabulary > vocab:  # often a padding token that a fine-tune added and nobody sends
        text = "the tokenizer has ids up to %d, the model only up to %d: prompts with a larger one are refused"
        log.warning(text, maker.tokenizer.vocabulary - 1, vocab - 1)
    give_back_freed()  # a tokenizer is read by way of three times its size
    return maker
