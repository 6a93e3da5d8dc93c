"""What a family of encoders makes of a config; one value for each architecture."""

from collections.abc import Callable
from dataclasses import dataclass

from engine.bundle.manifest import RopeSpec
from engine.models.config_fields import ConfigFields
from engine.models.encoder_details import Activation, ScoreHeadNames
from engine.models.network import WeightNames

NO_ROTATION = RopeSpec("none", 1.0, 2, (0.0,))  # the smallest that a manifest can say; no graph reads it


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """One config, read. Biases as in `FamilyDetails`; max_position: most tokens of one text. rope: None = a table."""

    hidden: int
    layers: int
    heads: int
    ffn: int
    vocab: int
    token_types: int
    max_position: int
    epsilon: float
    activation: Activation
    qkv_bias: bool
    output_bias: bool
    ffn_bias: bool
    rope: RopeSpec | None = None
    table_rows: int = 0
    position_offset: int = 0


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    """One architecture. prefix: of its modules' names inside the checkpoint; where none begins so, they have none.

    score_head: modules outside the prefix. prompts: of its tasks, where the checkpoint's files name none.
    """

    name: str
    architecture: str
    prefix: str
    read: Callable[[ConfigFields], EncoderConfig]
    names: WeightNames
    embedding_norm: str
    token_types: str
    positions: str | None
    score_head: ScoreHeadNames | None = None
    prompts: tuple[tuple[str, str], ...] = ()
