"""An engine whose every token is written down beforehand. Words are tokens; the vocabulary has 1,000 ids."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from engine import messages
from engine.bundle.answer_format import Markers
from engine.bundle.manifest import DiffusionSpec, GraphSpec, Manifest, TextSpec
from engine.bundle.model_spec import ModelSpec, RopeSpec
from engine.bundle.specs import ModelTask, PoolingKind, PoolingSpec, RerankKind, RerankSpec
from engine.bundle.vision import VisionSpec
from engine.client.chat_prompts import decode_embeds
from engine.client.engine import EngineInfo, EngineState
from engine.client.pooling import PooledInput
from engine.client.step_feed import StepFeed, StepWatch
from engine.errors import Busy, BusyReason, ContextLengthExceeded, HexserveError, InvalidRequest
from engine.grammar.spec import GrammarSpec
from engine.request import (
    Delivered,
    Delta,
    FinishReason,
    PromptEmbeds,
    Request,
    RequestTimings,
    TextLogprob,
    ThinkingBudget,
)
from engine.text.prompt import check_options
from engine.text.rendering import TextFacts
from tests.call_formats import HERMES, THINK, answers

NAME = "scripted"
FINGERPRINT = "hexserve-test-00000000"
END_ID = 2
CALLS = answers(HERMES)
WORDS = ("Hello", " there", ", friend", "!")
Script = Callable[[Request], Sequence[Delta | HexserveError]]


def manifest() -> Manifest:
    rope = RopeSpec(kind="default", theta=1e4, rotary_dim=4, inverse_frequencies=(1.0, 0.01))
    model = ModelSpec("qwen3", 2, 8, 2, 1, 4, 16, 1000, rope, parameters=1234)
    text = TextSpec("tokenizer.json", "chat_template.jinja", (END_ID,), answer=CALLS)
    graphs: tuple[GraphSpec, ...] = ()
    return Manifest(1, NAME, "cpu", "int4", "none", 1_700_000_000, model, graphs, "float32", 100, text, {}, {})


def info(max_context: int = 100) -> EngineInfo:
    ready = messages.Ready("folder", "CPU", max_context, ("free",))
    return EngineInfo(NAME, 1_700_000_000, max_context, 1000, "CPU", FINGERPRINT, ready, manifest())


def logprob(word: str, count: int | None) -> tuple[TextLogprob, ...]:
    """The word at -0.5 and `count` alternatives, the word itself first."""
    if count is None:
        return ()
    others = ((word, word.encode(), -0.5), *((f"w{i}", f"w{i}".encode(), -2.0 - i) for i in range(20)))
    return (TextLogprob(word, word.encode(), -0.5, others[:count]),)


def timings(request: Request, generated: int, cached: int = 3) -> RequestTimings:
    return RequestTimings(1.0, 20.0, 30.0, len(request.prompt_ids), cached, generated)


def say(request: Request, words: Sequence[str] = WORDS) -> list[Delta]:
    """The words, then the end token; cut by max_tokens."""
    count = request.params.logprobs
    deltas = [Delta(word, (10 + i,), logprob(word, count)) for i, word in enumerate(words)]
    deltas.append(Delta("", (END_ID,), logprob("<end>", count), FinishReason.STOP))
    kept = deltas[: request.params.max_tokens] or [Delta("", finish=FinishReason.LENGTH)]
    finish = kept[-1].finish or FinishReason.LENGTH
    last = kept[-1]
    kept[-1] = Delta(last.text, last.token_ids, last.logprobs, finish, timings=timings(request, len(kept)))
    return list(kept)


def numbers(request: Request) -> list[Delta]:
    """In place of words a vector of 4 numbers: the first token, how many there are, 0 and 1."""
    vector = np.array([request.prompt_ids[0], len(request.prompt_ids), 0, 1], "<f4")
    wanted = vector if request.pooling is None else vector[list(request.pooling.token_ids) or slice(None)]
    return [Delta("", finish=FinishReason.LENGTH, timings=timings(request, 0), vector=wanted.tobytes())]


class SplitTokenizer:
    """A token for each word: the number that it is, or 5."""

    longest_token_chars = 100

    def encode(self, text: str, allow_special: bool) -> tuple[int, ...]:
        return tuple(int(word) if word.isdecimal() else 5 for word in text.split())

    def decode(self, ids: Sequence[int], skip_special: bool) -> str:
        return " ".join(map(str, ids))


class ScriptedTokenStream:
    """Plays its script; each delta waits until the engine is not held."""

    def __init__(self, engine: "ScriptedEngine", request: Request, script: Sequence[Delta | HexserveError]) -> None:
        self.request = request
        self.prompt_tokens = len(request.prompt_ids)
        self._engine = engine
        self._script = script
        self._aborted = asyncio.Event()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        for step in self._script:
            await self._engine.released(self._aborted)
            if self._aborted.is_set():
                return
            if isinstance(step, HexserveError):
                self._engine.live.discard(self.request.id)
                raise step
            if step.finish is not None:
                self._engine.live.discard(self.request.id)
            yield step

    def abort(self) -> None:
        self._aborted.set()
        if self.request.id in self._engine.live:
            self._engine.live.discard(self.request.id)
            self._engine.aborted.append(self.request.id)
            self._engine.abort_seen.set()


class ScriptedEngine:
    """The methods routes use, with every decision in plain attributes."""

    def __init__(self, script: Script = say, max_context: int = 100, max_queued: int = 256) -> None:
        self.script = script
        self.state = EngineState.READY
        self.stats = messages.Stats(
            steps=7,
            rows_used=90,
            rows_run=120,
            variant_switches=5,
            kv_slots_used=32,
            kv_slots_total=64,
            running=3,
            experts_chosen=480,
            experts_read=31,
        )
        self.restarts = 2
        self.max_queued = max_queued
        self.submitted: list[tuple[Request, tuple[str, ...], bool, bool]] = []
        self.once: list[Markers | None] = []
        self.chats: list[Sequence[Mapping[str, Any]]] = []
        self.forms: list[tuple[GrammarSpec, str]] = []
        self.tools: list[Sequence[Mapping[str, Any]] | None] = []
        self.options: list[dict[str, Any]] = []
        self.prompt_end = b""  # what the last token of a prompt says, if not its number
        self.live: set[str] = set()
        self.aborted: list[str] = []
        self.abort_seen = asyncio.Event()
        self.submit_seen = asyncio.Event()
        self.refusal: HexserveError | None = None
        self.watched: list[bool] = []
        self.steps = StepFeed(self.watched.append)
        self._info = info(max_context)
        self._steps: asyncio.Semaphore | None = None

    async def start(self) -> None:
        self.state = EngineState.READY

    async def close(self) -> None:
        self.state = EngineState.STOPPED

    @property
    def info(self) -> EngineInfo:
        if self.state is EngineState.LOADING:
            raise Busy.loading()
        return self._info

    @property
    def device(self) -> str:
        return self.info.device

    def watch_steps(self) -> StepWatch:
        return self.steps.open()

    @property
    def unfinished(self) -> int:
        return len(self.live)

    def think(self) -> None:
        """Serve a model that reasons."""
        self.write(answer=answers(HERMES, THINK))

    def write(self, **fields: Any) -> None:
        """Serve a model of other text properties."""
        manifest = self._info.manifest
        text = msgspec.structs.replace(manifest.text, **fields)
        self._info = dataclasses.replace(self._info, manifest=msgspec.structs.replace(manifest, text=text))

    def embed(self, **fields: Any) -> None:
        """Serve a model that embeds, its end token behind every text."""
        spec = PoolingSpec(PoolingKind.LAST, 4, **({"end_ids": (END_ID,), "prompts": {"query": "7 8 "}} | fields))
        self._describe(task=ModelTask.EMBED, pooling=spec)
        self.script = numbers

    def rerank(self) -> None:
        """Serve a chat model that judges: the numbers of yes and no are the length and the first token."""
        spec = RerankSpec(RerankKind.JUDGE, "90 ", "{instruction} {query} {document}", " 91", "6", yes_id=1, no_id=0)
        self._describe(task=ModelTask.RERANK, rerank=spec)
        self.script = lambda request: say(request) if request.pooling is None else numbers(request)

    def _describe(self, **fields: Any) -> None:
        self._info = dataclasses.replace(self._info, manifest=msgspec.structs.replace(self._info.manifest, **fields))

    def see(self, vision: VisionSpec) -> None:
        """Serve a model that reads images."""
        self._describe(vision=vision)

    def denoise(self, block_length: int = 8) -> None:
        """Serve a block-diffusion model."""
        diffusion = DiffusionSpec(block_length, 999)
        manifest = msgspec.structs.replace(self._info.manifest, diffusion=diffusion)
        self._info = dataclasses.replace(self._info, manifest=manifest)

    def hold(self, deltas: int = 0) -> None:
        """Let `deltas` more deltas out, then none."""
        self._steps = asyncio.Semaphore(deltas)

    def release(self, deltas: int) -> None:
        assert self._steps is not None
        for _ in range(deltas):
            self._steps.release()

    async def released(self, aborted: asyncio.Event) -> None:
        if self._steps is None:
            await asyncio.sleep(0)
            return
        stepping = asyncio.ensure_future(self._steps.acquire())
        leaving = asyncio.ensure_future(aborted.wait())
        try:
            await asyncio.wait((stepping, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stepping.cancel()
            leaving.cancel()

    async def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        keep: int | None = None,
    ) -> tuple[int, ...]:
        self.chats.append(messages)
        self.tools.append(tools)
        self.options.append(check_options(options or {}))
        return self._words(" ".join(str(message["content"]) for message in messages), "messages", keep)

    async def text_prompt(self, text: str, keep: int | None = None) -> tuple[int, ...]:
        return self._words(text, "prompt", keep)

    async def embeds_prompt(self, encoded: str, param: str) -> PromptEmbeds:
        """Rows of 4 numbers."""
        return decode_embeds(encoded, 4, self.info.max_context, param)

    async def pooled_prompt(self, given: PooledInput) -> tuple[int, ...]:
        return given.ids(SplitTokenizer(), self._info.manifest, self._info.max_input)  # type: ignore[arg-type]

    def thinking_budget(self, tokens: int, is_open: bool) -> ThinkingBudget | None:
        if self.info.manifest.text.writes.reasoning is None:
            return None
        return ThinkingBudget(tokens, () if is_open else (30,), (31,))

    def token_pieces(self, ids: Sequence[int]) -> tuple[bytes, ...]:
        return (*(f"<{token_id}>".encode() for token_id in ids[:-1]), self.prompt_end or f"<{ids[-1]}>".encode())

    def _words(self, text: str, param: str, keep: int | None) -> tuple[int, ...]:
        return self.check_ids([5] * min(len(text.split()), keep or 10**9), param)

    async def tokenize(self, text: str, add_special: bool) -> tuple[int, ...]:
        return (1,) * add_special + (5,) * len(text.split())

    async def detokenize(self, ids: Sequence[int]) -> str:
        return " ".join(f"w{token_id}" for token_id in ids)

    async def token_names(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(f"w{token_id}" for token_id in ids)

    @property
    def text_facts(self) -> TextFacts:
        return TextFacts("<s>", "<end>", True, ("<s>", "<end>"), "{{ messages }}")

    async def compile_grammar(self, spec: GrammarSpec, param: str) -> str:
        self.forms.append((spec, param))
        return "a grammar"

    def check_ids(self, ids: Sequence[int], param: str) -> tuple[int, ...]:
        if not ids:
            raise InvalidRequest(f"'{param}' is empty: at least one token is needed.", param)
        if len(ids) >= self.info.max_context:
            raise ContextLengthExceeded(self.info.max_context, len(ids), 1, param)
        for index, token_id in enumerate(ids):
            if not 0 <= token_id < self.info.vocab:
                raise InvalidRequest(f"'{param}[{index}]' is {token_id}, not a token id.", param)
        return tuple(ids)

    def check_room(self, requests: int) -> None:
        if self.live and len(self.live) + requests > self.max_queued:
            raise Busy(f"The server is full: the limit is {self.max_queued}.", BusyReason.REQUESTS, 7.2)

    def submit(
        self,
        request: Request,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        delivered: Delivered | None = None,
        once: Markers | None = None,
    ) -> ScriptedTokenStream:
        if self.refusal is not None:
            raise self.refusal
        if len(self.live) >= self.max_queued:
            raise Busy("The server is full.", BusyReason.REQUESTS, 7.2)
        if len(request.prompt_ids) + request.params.max_tokens > self.info.max_context:
            raise ContextLengthExceeded(self.info.max_context, len(request.prompt_ids), request.params.max_tokens)
        self.submitted.append((request, stop, include_stop, skip_special))
        self.once.append(once)
        self.live.add(request.id)
        self.submit_seen.set()
        return ScriptedTokenStream(self, request, self.script(request))
