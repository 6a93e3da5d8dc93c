"""What a family has beside one stream of numbers: inputs of each layer, and several streams (AltUp, LAuReL)."""

from dataclasses import dataclass

_AT = "model.layers.{layer}"


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """What every layer takes of a row beside the stream: (norm(projection) + table) / sqrt(2), of all layers at once.

    size: numbers of one layer. vocab: rows of the table; tokens behind them have that of token 0. Modules: gate, output
    and post_norm are of a layer.
    """

    size: int
    vocab: int
    table: str = "model.embed_tokens_per_layer"
    projection: str = "model.per_layer_model_projection"
    norm: str = "model.per_layer_projection_norm"
    gate: str = f"{_AT}.per_layer_input_gate"
    output: str = f"{_AT}.per_layer_projection"
    post_norm: str = f"{_AT}.post_per_layer_input_norm"


@dataclass(frozen=True, slots=True)
class AltUp:
    """Streams of which a layer computes the first and mixes the others (AltUp, arXiv 2301.13310); beside its attention
    is a path of `rank` numbers (LAuReL, arXiv 2411.07501).

    count: of streams. Modules: spreading makes each further stream of the embedding, merging what the last norm takes
    of it; the others are of a layer. scale: a tensor [hidden].
    """

    count: int
    rank: int
    spreading: tuple[str, ...]
    merging: tuple[str, ...]
    router: str = f"{_AT}.altup.modality_router"
    router_norm: str = f"{_AT}.altup.router_norm"
    prediction: str = f"{_AT}.altup.prediction_coefs"
    correction: str = f"{_AT}.altup.correction_coefs"
    scale: str = f"{_AT}.altup.correct_output_scale"
    left: str = f"{_AT}.laurel.linear_left"
    right: str = f"{_AT}.laurel.linear_right"
    path_norm: str = f"{_AT}.laurel.post_laurel_norm"
