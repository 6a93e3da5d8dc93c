"""The parts of a manifest that describe one thing each: adapters, encoders, fused graphs, forecasts, quality."""

import math
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

Text = Annotated[str, Meta(max_length=4096)]
Name = Annotated[str, Meta(min_length=1, max_length=1024)]
Count = Annotated[int, Meta(ge=0, le=1 << 53)]
UnknownSize = Annotated[int, Meta(ge=0, le=1 << 24)]  # 0 where a Genie folder does not tell
Layers = Annotated[int, Meta(ge=1, le=1024)]
Heads = Annotated[int, Meta(ge=1, le=4096)]
HeadSize = Annotated[int, Meta(ge=2, le=4096)]
Vocabulary = Annotated[int, Meta(ge=1, le=1 << 24)]
Tokens = Annotated[int, Meta(ge=1, le=1 << 24)]
TokenId = Annotated[int, Meta(ge=0, lt=1 << 24)]
Rows = Annotated[int, Meta(ge=1, le=1 << 16)]
Part = Annotated[int, Meta(ge=1, le=4096)]
Axis = Annotated[int, Meta(ge=0, le=1 << 31)]
Scale = Annotated[float, Meta(gt=0, le=1e30)]
Index = Annotated[int, Meta(ge=0, lt=4096)]
Width = Annotated[int, Meta(ge=1, le=1 << 24)]
Share = Annotated[float, Meta(ge=0)]
Ids = Annotated[tuple[TokenId, ...], Meta(max_length=64)]
MAX_CACHE_BYTES_PER_TOKEN = 16 << 20  # 1 MiB serves the largest models there are


# Imported by the command line: nothing here may load another package.
class ModelTask(StrEnum):
    """Which requests a bundle answers."""

    GENERATE = "generate"
    EMBED = "embed"  # vectors only: its graphs give no logits
    RERANK = "rerank"  # scores; a chat model that judges in words answers chats as well
    TRANSCRIBE = "transcribe"  # texts of speech


class SampleSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text that a bundle is tried with when it is loaded."""

    ids: Annotated[tuple[TokenId, ...], Meta(max_length=256)] = ()
    losses: Annotated[tuple[float, ...], Meta(max_length=256)] = ()  # in nats, of each token but the first
    problems: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()  # sentences about what else contradicts the graphs

    def fault(self, vocabulary: int) -> str:
        """What is wrong with it, "" = nothing."""
        if any(token >= vocabulary for token in self.ids):
            return f"sample.ids holds {max(self.ids)}, which is not among {vocabulary} tokens"
        if self.losses and len(self.losses) != len(self.ids) - 1:
            return f"sample.losses must hold {len(self.ids) - 1} numbers, one for each of sample.ids but the first"
        return ""


class UsualSampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the model's files advise to choose tokens, in the words of requests; None = they do not say."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=1 << 24)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.0001, le=10)] | None = None


class Capability(StrEnum):
    """What requests may ask of a model, by what its files say."""

    COMPLETION = "completion"
    TOOLS = "tools"  # its chat template shows it tools
    REASONING = "reasoning"  # its chat template has marks around it
    VISION = "vision"  # chats may show it images
    EMBEDDINGS = "embeddings"
    RERANK = "rerank"
    TRANSCRIPTION = "transcription"


class EncoderSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of a model that reads whole texts in both directions and generates nothing."""

    token_types: Annotated[int, Meta(ge=1, le=1024)]  # token type ids are below it
    position_offset: Annotated[int, Meta(ge=0, le=1024)] = 0  # position of a text's first token
    score_head: Text = ""  # file of what makes one number of a pair of texts, "" = there is none
    projection: Text = ""  # file of a linear layer that makes a vector of a pooled one, "" = they are the same


class SpeechSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Of a model that reads log-mel frames of speech, mels x frames a window, and writes what is said (Whisper)."""

    mels: Annotated[int, Meta(ge=1, le=1024)]
    frames: Annotated[int, Meta(ge=2, le=1 << 16)]
    positions: Annotated[int, Meta(ge=1, le=1 << 16)]  # rows that its encoder makes of a window
    start: TokenId  # this and the following are special tokens
    end: TokenId
    transcribe: TokenId
    translate: TokenId
    previous: TokenId
    no_speech: TokenId
    no_timestamps: TokenId  # the last before the times, one for each position
    languages: Annotated[dict[Text, TokenId], Meta(max_length=256)] = {}  # id by code, {} = the model knows one
    suppressed: Annotated[tuple[TokenId, ...], Meta(max_length=4096)] = ()  # never written
    first: Annotated[tuple[TokenId, ...], Meta(max_length=64)] = ()  # that do not begin a text
    alignment: Annotated[tuple[tuple[Index, Index], ...], Meta(max_length=1024)] = ()  # (layer, head): follows speech

    @property
    def features(self) -> int:
        """Numbers of one window."""
        return self.mels * self.frames

    @property
    def first_time(self) -> int:
        """The token of the time 0."""
        return self.no_timestamps + 1


class ForecastSpec(msgspec.Struct, frozen=True):
    """A row with the id first_id + i guesses the token i + 2 places behind the row that it follows. file: keys and
    values of `columns` KV slots, which such rows see before everything else. branches: how many guesses follow the
    newest token, how many each of those, and so on."""

    file: Name
    columns: Annotated[int, Meta(ge=1, le=1024)]
    first_id: TokenId
    branches: Annotated[tuple[Annotated[int, Meta(ge=1, le=16)], ...], Meta(min_length=1, max_length=8)]


SPARE_SLOTS = 1


class FusedSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the fused graphs of a bundle have in common."""

    pd_total_len: Annotated[tuple[Rows, ...], Meta(min_length=1, max_length=256)]  # rows N
    pd_prefill_len: Annotated[tuple[Rows, ...], Meta(min_length=1, max_length=256)]  # of a prompt, N - D
    decode_slots: Rows  # D, the sequences that a step decodes
    past: Annotated[int, Meta(gt=SPARE_SLOTS, le=1 << 24)]  # KV slots of every cache
    kv_update_on_device: bool = False  # graphs also give the updated caches; otherwise the host writes what is new

    @property
    def slots(self) -> int:
        """KV slots of a cache that hold tokens: graphs write the rows that hold nothing into the last one."""
        return self.past - SPARE_SLOTS


LAYER = "{layer}"
STARTING = "qkv"  # the linear layer that a part starts its layer with; the others end the layer before


class LoraModule(msgspec.Struct, frozen=True, omit_defaults=True):
    """A matrix [outputs, inputs] of the checkpoint."""

    path: Name  # its name there, `{layer}` stands for the layer's index
    linear: Name  # the linear layer of the graphs that it is, or is stacked into
    inputs: Width
    outputs: Width
    scaled_outputs: Annotated[int, Meta(ge=0, le=1 << 24)] = 0  # first outputs, multiplied by `scale`
    scale: Scale = 1.0

    @property
    def name(self) -> str:
        """The last part of the path, as adapters name what they target."""
        return self.path.rpartition(".")[2]

    @property
    def starts_layer(self) -> bool:
        """Whether it lies before the layer's attention."""
        return self.linear == STARTING

    def in_layer(self, layer: int) -> str:
        return self.path.replace(LAYER, str(layer))


class PoolingKind(StrEnum):
    """Which rows of a text its vector is made of."""

    LAST = "last"  # the last one
    MEAN = "mean"  # all of them, averaged
    CLS = "cls"  # the first one


class PoolingSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a text becomes a vector."""

    kind: PoolingKind
    dimensions: Vocabulary  # numbers of a whole vector
    normalise: bool = True  # whether it has length 1
    may_cut: bool = True  # whether its first numbers alone are a vector as well (Matryoshka)
    begin_ids: Ids = ()  # in front of every text
    end_ids: Ids = ()  # behind it
    prompts: Annotated[dict[Text, Text], Meta(max_length=64)] = {}  # what may stand in front of a text, by name
    default_prompt: Text = ""  # of what stands there when nothing is asked for, "" = nothing


class RerankKind(StrEnum):
    """How a document is scored."""

    JUDGE = "judge"  # a chat model says yes or no: the share of yes in the probability of both
    PAIR = "pair"  # an encoder reads query and document as a pair and gives one number


class RerankSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a query and a document become a score. A judge reads prefix, body and suffix, each tokenised by itself. A
    pair is begin_ids, query, middle_ids, document, end_ids."""

    kind: RerankKind
    prefix: Text = ""
    body: Text = ""  # has {instruction}, {query} and {document}
    suffix: Text = ""
    instruction: Text = ""  # for requests that bring none
    yes_id: TokenId = 0  # tokens of the judgement
    no_id: TokenId = 0
    begin_ids: Ids = ()
    middle_ids: Ids = ()
    end_ids: Ids = ()
    has_types: bool = False  # token types tell the document from the query


class RoundingError(msgspec.Struct, frozen=True):
    """Squared error of a kind of matrices' outputs on calibration text, as a share of the outputs' squares: when
    weights are rounded to nearest, and as their codes were chosen."""

    nearest: Share
    chosen: Share


class QualitySpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """How codes of 4 bits were chosen."""

    level: Name  # of `--quality`
    methods: Annotated[tuple[Text, ...], Meta(max_length=64)]  # in the order of their use
    tokens: Count  # of calibration text
    seconds: Annotated[float, Meta(ge=0)]
    peak_bytes: Count = 0  # most memory of the compiler by then, 0 where unknown
    wide: Annotated[float, Meta(ge=0, le=1)] = 0.0  # share of the layers' weights that have 8 bits
    errors: dict[Name, RoundingError] = {}  # by kind of matrix, such as "down"


class TableSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file of [tokens, width] numbers, row after row. Quantised: real = scale * (q - zero_point), ONNX sign."""

    file: Name
    dtype: Name
    width: Width
    scale: Scale | None = None
    zero_point: Annotated[int, Meta(ge=-65536, le=65536)] | None = None


FLOAT_BYTES = 4
MOST_KERNEL = 64
MOST_STATE_BYTES = 2 << 30  # 256 MiB serves the largest models there are


class RecurrentKind(StrEnum):
    """What a recurrent layer does with its rows."""

    GATED_DELTA = "gated_delta"  # a convolution, then the gated delta rule over a matrix for each head
    MAMBA2 = "mamba2"  # a convolution, then decaying sums of outer products, a matrix for each head
    SHORT_CONV = "short_conv"  # a convolution over gated rows, whose outputs are gated: its last inputs are the state


class RecurrentSpec(msgspec.Struct, frozen=True):
    """Geometry of the recurrent layers. A short convolution is over the values alone, as many as the hidden size."""

    layers: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=1024)]  # ascending
    key_heads: Heads
    value_heads: Heads
    key_dim: HeadSize
    value_dim: HeadSize
    kernel: Annotated[int, Meta(ge=2, le=MOST_KERNEL)]  # of the convolution
    kind: RecurrentKind = RecurrentKind.GATED_DELTA
    is_beside: bool = False  # attention of the same layers reads the same rows, and what both give is added

    @property
    def has_memory(self) -> bool:
        """Whether the state has matrices beside the convolution's last inputs."""
        return self.kind is not RecurrentKind.SHORT_CONV

    @property
    def inputs(self) -> int:
        """Numbers of a token that the first matrix of a layer gives."""
        steps = self.value_heads if self.kind is RecurrentKind.MAMBA2 else 0
        return self.channels + self.value_width * (1 if self.has_memory else 2) + steps

    @property
    def columns(self) -> int:
        """Numbers that the convolution's file has for a channel: its weights, and of Mamba2 its bias, and how much of
        the channel's value is added to what the state gives."""
        return self.kernel + (2 if self.kind is RecurrentKind.MAMBA2 else 0)

    @property
    def key_width(self) -> int:
        """Numbers in the queries of a token, and in its keys."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Numbers in the values of a token."""
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Numbers of a token that go through the convolution: queries, keys, values."""
        return (2 * self.key_width if self.has_memory else 0) + self.value_width

    @property
    def memory_shape(self) -> tuple[int, int, int]:
        """[H, K, V] of one layer; nothing where there are no matrices."""
        return (self.value_heads, self.key_dim, self.value_dim) if self.has_memory else (0, 0, 0)

    @property
    def tail_shape(self) -> tuple[int, int]:
        """[C, W - 1] of one layer: what the convolution still needs of the last tokens."""
        return self.channels, self.kernel - 1

    @property
    def memory_bytes(self) -> int:
        """float32 bytes of the matrices of one sequence, over all layers."""
        return len(self.layers) * math.prod(self.memory_shape) * FLOAT_BYTES

    @property
    def tail_bytes(self) -> int:
        """float32 bytes of the convolutions' last inputs of one sequence, over all layers."""
        return len(self.layers) * self.channels * (self.kernel - 1) * FLOAT_BYTES

    @property
    def state_bytes(self) -> int:
        """Both: the state of one sequence, however long it is."""
        return self.memory_bytes + self.tail_bytes

    def fault(self, layers: int) -> str:
        """What is wrong with it in a model of so many layers, "" when nothing is."""
        if list(self.layers) != sorted(set(self.layers)) or self.layers[-1] >= layers:
            return f"recurrent layers {list(self.layers)[:8]} are not ascending numbers below {layers}"
        if len(self.layers) == layers and not self.is_beside:
            return "no layer has attention"
        if self.value_heads % self.key_heads:
            return f"{self.value_heads} value heads are no multiple of {self.key_heads} key heads"
        if self.state_bytes > MOST_STATE_BYTES:
            return f"recurrent layers take {self.state_bytes} bytes a sequence, {MOST_STATE_BYTES} is the most"
        return ""


class ExpertSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Geometry of the experts."""

    layers: Annotated[tuple[Count, ...], Meta(min_length=1, max_length=1024)]  # that have them, ascending
    count: Annotated[int, Meta(ge=1, le=4096)]  # of a layer
    chosen: Annotated[int, Meta(ge=1, le=4096)]  # for a token
    ffn: Width  # numbers between the two matrices of one
    shared: UnknownSize = 0  # the same of what every token goes through as well
