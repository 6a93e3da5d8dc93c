"""What the routes need of an engine. `engine.client.engine.Engine` is one; tests bring a scripted one."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from engine.client.engine import EngineInfo, EngineState
from engine.client.pass_feed import PassWatch
from engine.grammar.spec import GrammarSpec
from engine.messages import Stats
from engine.pooling.prompts import PooledInput
from engine.request import Delivered, Delta, PromptEmbeds, Request, ThinkingBudget
from engine.text.facts import TextFacts


class TokenStreamLike(Protocol):
    """The stream of one request. Its last delta carries `finish`; iteration raises HexserveError if it fails."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""

    def __aiter__(self) -> AsyncIterator[Delta]:
        """One reader."""

    def abort(self) -> None:
        """Forget the request; a plain call that may be repeated, also after the end."""


class EngineLike(Protocol):
    """Start, prompts to tokens, submit, abort, state, counters. See `engine.client.engine.Engine` for the errors."""

    async def start(self) -> None:
        """Load, and return when requests can run; raises HexserveError."""

    async def close(self) -> None:
        """Stop, and leave no process behind; may be repeated."""

    @property
    def state(self) -> EngineState:
        """Where the engine is in its life."""

    @property
    def info(self) -> EngineInfo:
        """What is served; raises Busy while it loads."""

    @property
    def stats(self) -> Stats:
        """Counters over all workers, gauges of the current one."""

    @property
    def restarts(self) -> int:
        """Workers replaced."""

    @property
    def unfinished(self) -> int:
        """Requests that wait or run."""

    def watch_passes(self) -> PassWatch:
        """Every pass from now on, until the watch is ended."""

    async def chat_prompt(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        options: Mapping[str, Any] | None = None,
        keep: int | None = None,
    ) -> tuple[int, ...]:
        """Render and tokenise a chat; of a longer prompt only the last `keep` tokens are used."""

    async def text_prompt(self, text: str, keep: int | None = None) -> tuple[int, ...]:
        """Tokenise a plain prompt; of a longer one only the last `keep` tokens are used."""

    async def embeds_prompt(self, encoded: str, param: str) -> PromptEmbeds:
        """A prompt of embeddings: base64 of a .npy file."""

    async def pooled_prompt(self, given: PooledInput) -> tuple[int, ...]:
        """Tokens of what becomes a vector or a score."""

    def thinking_budget(self, tokens: int, is_open: bool) -> ThinkingBudget | None:
        """A bound on reasoning as the model's tokens; None for a model that does not reason."""

    def token_pieces(self, ids: Sequence[int]) -> tuple[bytes, ...]:
        """The bytes each token stands for."""

    async def tokenize(self, text: str, add_special: bool) -> tuple[int, ...]:
        """Tokenise a text of any length."""

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Text of token ids of the vocabulary."""

    async def token_names(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The vocabulary's spelling of each id."""

    @property
    def text_facts(self) -> TextFacts:
        """What the bundle says about its tokenizer."""

    async def compile_grammar(self, spec: GrammarSpec, param: str) -> str:
        """The grammar of a form, for `SamplingParams`."""

    def check_ids(self, ids: Sequence[int], param: str) -> tuple[int, ...]:
        """The ids, checked."""

    def check_room(self, requests: int) -> None:
        """Raise Busy when so many more requests would not be taken now."""

    def submit(
        self,
        request: Request,
        stop: tuple[str, ...] = (),
        include_stop: bool = False,
        skip_special: bool = True,
        delivered: Delivered | None = None,
    ) -> TokenStreamLike:
        """Queue a request, to go on behind what another server has delivered of its answer."""
