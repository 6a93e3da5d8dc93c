"""What a config says of each layer: attention full, under a window or of latents (MLA), and further streams. Latent
attention makes keys and values of a few numbers of each token: DeepSeek-V2, arXiv 2405.04434."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from engine.bundle.model_spec import LayerAttention, RotationKind
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief
from engine.models.config_fields import ConfigFields
from engine.models.rotary import FULL, SLIDING

MAX_WINDOW, USUAL_WINDOW = 1 << 40, 4096
ATTENTION = "attention"  # what Granite 4 calls layers that see everything
_LAYER = "model.layers.{layer}"


def layer_count(config: ConfigFields) -> int:
    return config.integer("num_hidden_layers", 1, 1024)


def declared_window(config: ConfigFields, default: int = USUAL_WINDOW) -> int:
    """`sliding_window`; 0 or null is no window. default: where it is absent, 0 = no window either."""
    if config.raw("sliding_window") in (None, 0):
        return 0 if "sliding_window" in config.names() else default
    return min(config.integer("sliding_window", 1, MAX_WINDOW), 1 << 24)


def sliding_layers(config: ConfigFields, default: Callable[[int], bool]) -> tuple[bool, ...]:
    """Which layers have the window: those of `layer_types`, else as the family has them by their number."""
    layers, kinds = layer_count(config), config.raw("layer_types")
    if kinds is None:
        return tuple(map(default, range(layers)))
    for kind in kinds if isinstance(kinds, list) else ():
        if kind not in (FULL, SLIDING, ATTENTION):
            raise UnsupportedModel(f"layer type {brief(kind)} is not supported")
    if not isinstance(kinds, list) or len(kinds) < layers:
        raise CompileError(f"config.json: layer_types must name {layers} layers, as num_hidden_layers says")
    return tuple(kind == SLIDING for kind in kinds[:layers])


def recurrent_layers(
    kinds: object, layers: int, recurrent: Collection[str], attention: Collection[str]
) -> tuple[int, ...]:
    """Numbers of the layers that `layer_types` says have a state. UnsupportedModel for kinds of another name."""
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise CompileError(f"config.json: layer_types must name {layers} layers, as num_hidden_layers says")
    if unknown := [kind for kind in kinds if kind not in (*recurrent, *attention)]:
        raise UnsupportedModel(f"layer type {brief(unknown[0])} is not supported")
    return tuple(layer for layer, kind in enumerate(kinds) if kind in recurrent)


def windows(config: ConfigFields, sliding: Sequence[bool], default: int = USUAL_WINDOW) -> tuple[LayerAttention, ...]:
    """All layers turn alike; those named have the window."""
    return unlike(config, sliding, RotationKind.MODEL, RotationKind.MODEL, default)


def unlike(
    config: ConfigFields,
    sliding: Sequence[bool],
    of_sliding: RotationKind,
    of_full: RotationKind,
    default: int = USUAL_WINDOW,
) -> tuple[LayerAttention, ...]:
    """Layers with the window turn in one way, the others in another."""
    kinds = (LayerAttention(0, of_full), LayerAttention(declared_window(config, default), of_sliding))
    return tuple(kinds[has_window] for has_window in sliding)


def cache_owners(config: ConfigFields, sliding: Sequence[bool], default: int) -> tuple[int, ...]:
    """Whose keys and values each layer reads, -1 = its own: the last `num_kv_shared_layers` read those of the last
    layer of their kind before them. UnsupportedModel where there is no such layer."""
    layers = len(sliding)
    first_shared = layers - config.integer("num_kv_shared_layers", 0, layers - 1, default)
    found = [-1] * first_shared
    for layer in range(first_shared, layers):
        alike = [other for other in range(first_shared) if sliding[other] == sliding[layer]]
        if not alike:
            raise UnsupportedModel(f"num_kv_shared_layers leaves layer {layer} no layer of its type to read from")
        found.append(alike[-1])
    return tuple(found)


def every_window(config: ConfigFields, default: int) -> tuple[LayerAttention, ...]:
    """`sliding_window` counts for all layers (Mistral, Phi-3) but those that `layer_types` calls full."""
    return windows(config, sliding_layers(config, lambda _: True), default)


def switched_window(config: ConfigFields) -> tuple[LayerAttention, ...]:
    """Qwen: it counts with `use_sliding_window`, from layer `max_window_layers` on, or for the layers listed."""
    is_on = config.flag("use_sliding_window", False)
    first = config.integer("max_window_layers", 0, 1024, 28) if is_on else 0
    sliding = sliding_layers(config, lambda layer: is_on and layer >= first)
    return windows(config, sliding, USUAL_WINDOW if is_on else 0)


def every_nth_full(config: ConfigFields, default: int) -> tuple[bool, ...]:
    """Layers with the window where each `sliding_window_pattern`-th has none."""
    raw = config.raw("sliding_window_pattern")
    if isinstance(raw, str):  # such as LLLG
        if not raw or set(raw) - {"L", "G"}:
            raise CompileError(f"config.json: sliding_window_pattern must be of L and G, it is {brief(raw)}")
        return sliding_layers(config, lambda layer: raw[layer % len(raw)] == "L")
    nth = config.integer("sliding_window_pattern", 1, 1024, default)
    return sliding_layers(config, lambda layer: bool((layer + 1) % nth))


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """What layers take of a row beside the stream: (norm(projection) + table) / sqrt(2), of all layers at once."""

    size: int  # of one layer
    vocab: int  # rows of the table; tokens behind them have that of token 0
    table: str = "model.embed_tokens_per_layer"
    projection: str = "model.per_layer_model_projection"
    norm: str = "model.per_layer_projection_norm"
    gate: str = f"{_LAYER}.per_layer_input_gate"  # this and the following are of a layer
    output: str = f"{_LAYER}.per_layer_projection"
    post_norm: str = f"{_LAYER}.post_per_layer_input_norm"


@dataclass(frozen=True, slots=True)
class AltUp:
    """Streams of which a layer computes the first and mixes the others (AltUp, arXiv 2301.13310); beside its attention
    is a path of `rank` numbers (LAuReL, arXiv 2411.07501)."""

    count: int  # of streams
    rank: int
    spreading: tuple[str, ...]  # modules that make each further stream of the embedding
    merging: tuple[str, ...]  # what the last norm takes of it
    router: str = f"{_LAYER}.altup.modality_router"  # this and the following are of a layer
    router_norm: str = f"{_LAYER}.altup.router_norm"
    prediction: str = f"{_LAYER}.altup.prediction_coefs"
    correction: str = f"{_LAYER}.altup.correction_coefs"
    scale: str = f"{_LAYER}.altup.correct_output_scale"  # tensor [hidden]
    left: str = f"{_LAYER}.laurel.linear_left"
    right: str = f"{_LAYER}.laurel.linear_right"
    path_norm: str = f"{_LAYER}.laurel.post_laurel_norm"


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Latents of queries, of keys and of values, normed, of which heads are made."""

    query_rank: int  # 0 = queries are of the stream
    kv_rank: int
    kept: int  # numbers of a head that do not turn
    turned: int  # those that do, which all heads' keys have in common
    value_dim: int  # of a head
    epsilon: float = 1e-6  # of the norms of both latents
    query_norm: str = f"{_LAYER}.self_attn.q_a_layernorm"
    query_up: str = f"{_LAYER}.self_attn.q_b_proj"
    kv_norm: str = f"{_LAYER}.self_attn.kv_a_layernorm"
    kv_up: str = f"{_LAYER}.self_attn.kv_b_proj"

    @property
    def head_dim(self) -> int:
        """Of queries and keys; values are filled up with zeros."""
        return self.turned + self.kept

    @property
    def names(self) -> tuple[str, str]:
        """What reads the stream: queries or their latents, then the latents of keys and values."""
        return (
            f"{_LAYER}.self_attn.{'q_a_proj' if self.query_rank else 'q_proj'}",
            f"{_LAYER}.self_attn.kv_a_proj_with_mqa",
        )


def read_latent(config: ConfigFields, query_rank: int) -> LatentAttention:
    """query_rank: where the config has no such key. UnsupportedModel for values that are wider than keys."""
    rank = config.integer("q_lora_rank", 0, 1 << 16, 0 if "q_lora_rank" in config.names() else query_rank)
    latent = LatentAttention(
        query_rank=rank,
        kv_rank=config.integer("kv_lora_rank", 1, 1 << 16, 512),
        kept=config.integer("qk_nope_head_dim", 1, 2048),
        turned=config.integer("qk_rope_head_dim", 2, 1024, 64),
        value_dim=config.integer("v_head_dim", 1, 2048),
    )
    if latent.value_dim > latent.head_dim:
        raise UnsupportedModel(f"v_head_dim {latent.value_dim} above the {latent.head_dim} of keys is not supported")
    if not rank and config.flag("attention_bias", False):
        raise UnsupportedModel("attention_bias is not supported without q_lora_rank")
    return latent
