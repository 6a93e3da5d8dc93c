"""A request to the engine and what comes back: events, deltas, timings. Standard library only, for both processes."""

from dataclasses import dataclass
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"  # an end-of-sequence or stop token
    LENGTH = "length"  # max_tokens or the context window
    ABORT = "abort"  # the caller left or a stop string was found


@dataclass(frozen=True, slots=True)
class ThinkingBudget:
    """Most tokens between those that open and those that close a reasoning block."""

    tokens: int
    opening: tuple[int, ...]  # empty when the prompt has opened the block
    closing: tuple[int, ...]  # never empty
    opens_within: int = 4  # tokens within which `opening` must come


class Unmasking(StrEnum):
    """Which masked tokens of a block a step settles; always at least as many as it must to end in time."""

    DYNAMIC_CONFIDENCE = "dynamic_confidence"  # all above the threshold, else the surest
    STATIC_CONFIDENCE = "static_confidence"  # the surest
    SEQUENTIAL = "sequential"  # the first
    ENTROPY_BOUND = "entropy_bound"  # those of least entropy while their sum is within a bound


@dataclass(frozen=True, slots=True)
class Denoising:
    """How a block-diffusion model makes the tokens of a block out of masks."""

    block_length: int
    mask_token: int
    steps: int  # most of a block, 1 to block_length
    unmasking: Unmasking = Unmasking.DYNAMIC_CONFIDENCE
    confidence_threshold: float = 0.9  # 0 to 1
    entropy_bound: float = 0.1  # nats


@dataclass(frozen=True, slots=True)
class SpeechRules:
    """Which tokens may follow in a transcript."""

    suppressed: tuple[int, ...]  # never written
    first: tuple[int, ...]  # not as the first one
    end: int  # ends a text
    first_time: int  # the token of the time 0, whose successors are later times, in steps of one position
    times: bool  # whether segments begin and end with one; else none is written
    latest_start: int = 50  # of the first segment, in steps


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are sampled; validated before it is built. Order of application: `engine/sampling/sampler.py`."""

    max_tokens: int  # 0 generates nothing: only the prompt is computed
    temperature: float = 1.0  # 0 is greedy
    top_k: int = 0  # 0 = off
    top_p: float = 1.0  # 1 = off
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None  # None draws one at submission
    stop_token_ids: tuple[int, ...] = ()  # includes the model's own end tokens unless the request has ignore_eos
    ignored_end_ids: tuple[int, ...] = ()  # those tokens if it has
    min_tokens: int = 0  # neither are sampled before this many, unless the grammar allows nothing else
    logprobs: int | None = None  # alternatives to report per token, 0 = the chosen one only, None = off
    prompt_logprobs: int | None = None  # the same for the tokens of the prompt
    thinking_budget: ThinkingBudget | None = None
    grammar: str | None = None  # llguidance's, serialised and known to compile; stop_token_ids has the end tokens
    denoising: Denoising | None = None  # not None: penalties, grammar, prompt_logprobs and thinking_budget are off
    speech: SpeechRules | None = None  # of a transcript; log-probabilities are then of the tokens that the rules allow

    @property
    def late_token_ids(self) -> tuple[int, ...]:
        """What is not sampled before `min_tokens`, as in vLLM also where the end is ignored."""
        return (*self.stop_token_ids, *self.ignored_end_ids)


@dataclass(frozen=True, slots=True)
class PromptEmbeds:
    """A prompt as rows of numbers. data: float32, little-endian, [tokens, hidden], row by row."""

    tokens: int
    data: bytes

    def __len__(self) -> int:
        return self.tokens

    @property
    def placeholders(self) -> tuple[int, ...]:
        """What stands for its rows where token ids are counted."""
        return (0,) * self.tokens


@dataclass(frozen=True, slots=True)
class PromptImage:
    """A tile of an image in a prompt: its rows take the place of `tokens` placeholders from index `first` on."""

    first: int
    tokens: int
    digest: bytes  # tells its pixels and its grid from all others, 32 bytes
    pixels: bytes  # uint8, as the bundle's vision graph takes them
    features: bytes = b""  # float32 rows, little-endian, once the worker has them; then `pixels` is empty
    grid: tuple[int, int] = (0, 0)  # rows and columns of tokens that turn by both, (0, 0) = by its index, like text
    both_ways: bool = False  # its rows see each other both ways, so that all of them lie in one step


@dataclass(frozen=True, slots=True)
class ImagePrompt:
    """A prompt with images: token ids with their placeholders."""

    ids: tuple[int, ...]
    images: tuple[PromptImage, ...]

    def __len__(self) -> int:
        return len(self.ids)


def ids_of(prompt: tuple[int, ...] | ImagePrompt) -> tuple[int, ...]:
    """The token ids of a prompt, placeholders among them."""
    return prompt.ids if isinstance(prompt, ImagePrompt) else prompt


@dataclass(frozen=True, slots=True)
class Pooling:
    """That a request wants numbers of its rows, and no token."""

    token_ids: tuple[int, ...] = ()  # which of the row's outputs, () = all
    alignment: bool = False  # of speech, instead of logits, how far each prompt token looks at each position


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate."""

    id: str
    prompt_ids: tuple[int, ...]  # never empty
    params: SamplingParams
    priority: int = 0  # a lower number runs first
    cache_salt: bytes = b""  # requests share cached prefixes only with those of the same salt (at most 64 bytes)
    adapter: str = ""  # the name of the one whose paths its rows take, "" = the model alone
    prediction: tuple[int, ...] = ()  # what the caller expects of the answer; it changes only how soon tokens come
    prompt_embeds: bytes = b""  # data of `PromptEmbeds`, whose placeholders `prompt_ids` then are
    pooling: Pooling | None = None  # what is wanted instead of tokens
    audio: bytes = b""  # speech: log-mel frames [mels, frames], float32, little-endian
    images: tuple[PromptImage, ...] = ()  # by `first`


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probability of the chosen token and of the likeliest alternatives (`top`: id, logprob)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """New tokens of one request in one step; the last event carries `finish`. A stop token ends the sequence and is the
    last of `token_ids`; `stopped_by` then holds it."""

    id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish: FinishReason | None = None
    stopped_by: int | None = None
    timings: "RequestTimings | None" = None
    cached_tokens: int = 0  # of the prompt, taken from the prefix cache
    device: str = ""  # where the worker runs its graphs, "" from the second event on
    queue_ms: float = 0.0  # how long the request waited there
    prompt_logprobs: tuple[TokenLogprob, ...] = ()  # with the first event, of all prompt tokens but the first
    guesses: "GuessCounts | None" = None  # of the step, None if it had none
    vector: bytes = b""  # what a request with `pooling` wanted, float32, little-endian, neither cut nor normalised


@dataclass(frozen=True, slots=True)
class Delivered:
    """What the client has already of an answer that another server began: its tokens, and how it ended if it has."""

    token_ids: tuple[int, ...]
    finish: FinishReason | None = None
    stopped_by: str | int | None = None


@dataclass(frozen=True, slots=True)
class GuessCounts:
    """Guessed tokens of one sequence, and those that were right; of them, those of the caller's own prediction."""

    drafted: int = 0
    accepted: int = 0
    predicted: int = 0
    predicted_accepted: int = 0

    def plus(self, other: "GuessCounts") -> "GuessCounts":
        return GuessCounts(
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            self.predicted + other.predicted,
            self.predicted_accepted + other.predicted_accepted,
        )


@dataclass(frozen=True, slots=True)
class RequestTimings:
    """Timings of one finished request: milliseconds and token counts."""

    queue_ms: float
    prompt_ms: float
    generate_ms: float
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    drafted_tokens: int = 0  # guesses
    accepted_tokens: int = 0  # that were right
    predicted_tokens: int = 0  # of the caller's prediction
    accepted_predicted_tokens: int = 0
    preemptions: int = 0
    steps: int = 0  # that it took part in
    step_rows: int = 0  # useful rows of those steps, its own and its neighbours'
    first_token_ms: float = 0.0  # since it was submitted, 0 = it had none
    devices: tuple[str, ...] = ()  # that computed it, in order

    @property
    def computed_tokens(self) -> int:
        """Those of the prompt that were not found in the prefix cache."""
        return self.prompt_tokens - self.cached_tokens

    def line(self) -> str:
        """One line in the classic form: times, rates, acceptance."""
        acceptance = self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0
        return (
            f"prompt:{self.prompt_ms:.1f}ms generate:{self.generate_ms:.1f}ms "
            f"tps:prompt={rate(self.computed_tokens, self.prompt_ms):.1f} "
            f"generate={rate(self.generated_tokens - 1, self.generate_ms):.1f} "
            f"rows/step={self.step_rows / self.steps if self.steps else 0.0:.1f} acceptance={acceptance:.2f}"
        )


def rate(tokens: int, milliseconds: float) -> float:
    """Tokens per second; 0 where nothing was timed."""
    return 1000.0 * tokens / milliseconds if milliseconds > 0 and tokens > 0 else 0.0


@dataclass(frozen=True, slots=True)
class TextLogprob:
    """A `TokenLogprob` as text: the token's own bytes (a lone byte of a code point has no clean text)."""

    token: str
    token_bytes: bytes
    logprob: float
    top: tuple[tuple[str, bytes, float], ...] = ()
    is_hidden: bool = False  # the text of the answer leaves it out, as a special token


@dataclass(frozen=True, slots=True)
class Delta:
    """New text of one request, never splitting a code point. The last one carries `finish`, counts and timings."""

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TextLogprob, ...] = ()
    finish: FinishReason | None = None
    stopped_by: str | int | None = None  # the stop string or token; None for a length or the model's own end
    timings: RequestTimings | None = None
    prompt_logprobs: tuple[TextLogprob, ...] = ()  # of prompt tokens but the first, with the first delta, if asked for
    is_known: bool = False  # the client has it already, from the server that this one goes on for
    vector: bytes = b""  # as in the `TokenEvent`
