"""What an encoder has that a decoder has not: tables of positions and token types, norms with biases, a score head."""

from dataclasses import dataclass
from enum import StrEnum

from engine.bundle.encoder_spec import EncoderSpec


class Activation(StrEnum):
    """Between the two layers of a feed-forward; the names are those of ONNX operators' forms."""

    GELU = "gelu"
    GELU_TANH = "gelu_tanh"  # its usual approximation
    RELU = "relu"
    GATED_SILU = "gated_silu"  # silu(gate) * up


@dataclass(frozen=True, slots=True)
class ScoreHeadNames:
    """Two modules over a text's first row: `dense`, then tanh, then `scores`."""

    dense: str
    scores: str


@dataclass(frozen=True, slots=True)
class EncoderDetails:
    """Modules by name. positions: the table of positions, None = rotary. table_rows: its rows.

    Norms have weight and bias, and follow what they norm: `FamilyDetails.names.attention_norm` the sum after attention,
    `ffn_norm` that after the feed-forward. prompts: of the family's tasks, by name.
    """

    spec: EncoderSpec
    activation: Activation
    embedding_norm: str
    token_types: str
    positions: str | None
    table_rows: int = 0
    score_head: ScoreHeadNames | None = None
    prompts: tuple[tuple[str, str], ...] = ()
