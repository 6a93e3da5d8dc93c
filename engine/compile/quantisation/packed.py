"""A network's weights, or an encoder's, as the graphs will read them: every matrix with its storage form."""

from dataclasses import dataclass

from engine.compile.quantisation.methods.method import Method, StoredMatrix
from engine.compile.quantisation.weight_file import StoredTensor


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """One linear layer, perhaps several stacked along their outputs. bias: float32 [outputs]."""

    method: Method
    matrix: StoredMatrix
    bias: StoredTensor | None = None


@dataclass(frozen=True, slots=True)
class PackedTable:
    """The embedding [vocab, hidden]. bits 32 and 16: floats; 8: integers with scales [vocab, 1]; 4: two's complement
    with scales [vocab, blocks]. In blocks and unsigned: a matrix's codes around their middle, those of a tied head in
    its own bytes. With a zero point: unsigned 16-bit codes with one scale and one zero point, both scalars."""

    bits: int
    weight: StoredTensor
    scales: StoredTensor | None = None
    block: int = 0
    zero_point: StoredTensor | None = None


@dataclass(frozen=True, slots=True)
class PackedDelta:
    """What only a layer whose state has matrices has. steps: two numbers for each value head, of beta and of the decay;
    None = the layer's first matrix gives the latter (Mamba2). rate [heads]: -exp(A_log). dt_bias [heads]. norm: of the
    outputs of a head [value size], or of all; None = there is none."""

    steps: PackedLinear | None
    rate: StoredTensor
    dt_bias: StoredTensor
    norm: StoredTensor | None


@dataclass(frozen=True, slots=True)
class PackedRecurrence:
    """What only a recurrent layer has beside its two matrices. delta: None for a short convolution. output: of
    recurrence beside attention, whose own is the layer's."""

    delta: PackedDelta | None = None
    output: PackedLinear | None = None


@dataclass(frozen=True, slots=True)
class PackedStack:
    """A matrix [outputs, inputs] of each expert, behind each other. bias: float32 [experts, outputs]."""

    matrix: StoredMatrix
    bias: StoredTensor | None = None


@dataclass(frozen=True, slots=True)
class PackedBeside:
    """Norms [hidden] of the stream for the router and for the experts, behind these, and behind the feed-forward."""

    router_norm: StoredTensor
    norm: StoredTensor
    post_norm: StoredTensor
    dense_post_norm: StoredTensor


@dataclass(frozen=True, slots=True)
class PackedExperts:
    """Of one layer. gate_up: rows of gate and up take turns. down holds the factor of what is routed. choice_bias
    [experts]: what scores are chosen with. shared_gate: of what every row goes through as well, None = it has none.
    beside: None = experts take what the feed-forward would."""

    router: PackedLinear
    gate_up: PackedStack
    down: PackedStack
    choice_bias: StoredTensor | None = None
    shared_gate: PackedLinear | None = None
    beside: PackedBeside | None = None


@dataclass(frozen=True, slots=True)
class PackedLatents:
    """Norms of latents and what makes heads of them; query_norm and query_up: None = queries are no latents."""

    query_norm: StoredTensor | None
    query_up: PackedLinear | None
    kv_norm: StoredTensor
    kv_up: PackedLinear


@dataclass(frozen=True, slots=True)
class PackedEnding:
    """Behind the feed-forward. scale [1]: of the whole stream, None = 1. gate [inputs of a layer, hidden], output
    [hidden, inputs of a layer] and norm: what makes something of the layer's own inputs, None = it has none."""

    scale: StoredTensor | None
    gate: PackedLinear | None = None
    output: PackedLinear | None = None
    norm: StoredTensor | None = None


@dataclass(frozen=True, slots=True)
class PackedLayerInputs:
    """Of all layers side by side. projection and norm hold the factor of the sum; table_scale: of the table's rows,
    of which there are `vocab`."""

    table: PackedTable
    vocab: int
    table_scale: float
    projection: PackedLinear
    norm: StoredTensor


@dataclass(frozen=True, slots=True)
class PackedStreams:
    """Of a layer with S streams. router_norm [hidden] holds 1 / hidden, the bias of prediction [S * S, S] the identity,
    that of correction [S, S] ones. scale [hidden]: of the first stream where inputs of the layer are added. left [rank,
    hidden], right [hidden, rank] and path_norm [hidden]: of the path beside attention."""

    router_norm: StoredTensor
    router: PackedLinear
    prediction: PackedLinear
    correction: PackedLinear
    scale: StoredTensor
    left: PackedLinear
    right: PackedLinear
    path_norm: StoredTensor


@dataclass(frozen=True, slots=True)
class PackedLayer:
    """One transformer layer. q_norm already holds the attention scale when there is one, else qkv does.

    In a recurrent layer qkv holds queries, keys, values and the gate of the output, behind those of attention where
    there is both. A norm that the family lacks is None. output and down hold the multiplier of what is added to the
    stream. gate_up and down: of what every row goes through, None where experts alone take its place, or nothing does.
    sinks [heads]. v_norm: of each head of values. gate_cutoff: as `Network.gate_cutoff`."""

    attention_norm: StoredTensor | None
    qkv: PackedLinear
    q_norm: StoredTensor | None
    k_norm: StoredTensor | None
    output: PackedLinear
    ffn_norm: StoredTensor | None
    gate_up: PackedLinear | None
    down: PackedLinear | None
    recurrence: PackedRecurrence | None = None
    attention_post_norm: StoredTensor | None = None
    ffn_post_norm: StoredTensor | None = None
    sinks: StoredTensor | None = None
    experts: PackedExperts | None = None
    v_norm: StoredTensor | None = None
    ending: PackedEnding | None = None
    latents: PackedLatents | None = None
    gate_cutoff: float | None = None
    streams: PackedStreams | None = None


@dataclass(frozen=True, slots=True)
class PackedPart:
    """What one part's data file holds. The last part of an embedder has a final norm and no head. embedding_norm: of
    the table's rows, None = there is none. spreading, merging: of several streams."""

    table: PackedTable | None
    layers: tuple[PackedLayer, ...]
    final_norm: StoredTensor | None
    head: PackedLinear | None
    embedding_norm: StoredTensor | None = None
    layer_inputs: PackedLayerInputs | None = None
    spreading: PackedLinear | None = None
    merging: tuple[PackedLinear, ...] = ()


@dataclass(frozen=True, slots=True)
class PackedNorm:
    """Of a layer norm, both [hidden]."""

    weight: StoredTensor
    bias: StoredTensor


@dataclass(frozen=True, slots=True)
class PackedAttention:
    """inputs: query, key and value as one, or the query alone, then keys and values of what was heard; the first holds
    the attention scale. norm: of a speech model in front of all, of an encoder behind the sum, as of feed-forwards."""

    inputs: tuple[PackedLinear, ...]
    output: PackedLinear
    norm: PackedNorm


@dataclass(frozen=True, slots=True)
class PackedTowerLayer:
    """Of an encoder or a speech model. up: the gate in front of it where there is one. heard: attention to what the
    encoder of sound gives, None = there is none."""

    own: PackedAttention
    up: PackedLinear
    down: PackedLinear
    ffn_norm: PackedNorm
    heard: PackedAttention | None = None


@dataclass(frozen=True, slots=True)
class PackedEncoder:
    """The whole network. token_types [types, hidden], positions [places, hidden] or None for rotary ones."""

    table: PackedTable
    token_types: StoredTensor
    positions: StoredTensor | None
    embedding_norm: PackedNorm
    layers: tuple[PackedTowerLayer, ...]
