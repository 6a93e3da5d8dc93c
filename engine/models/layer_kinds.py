"""What a config says of each layer's attention: full or under a window, and what turns it."""

from collections.abc import Callable, Collection, Sequence

from engine.bundle.model_spec import LayerAttention, RotationKind
from engine.bundle.specs import RecurrentSpec
from engine.errors import CompileError, UnsupportedModel
from engine.files import brief
from engine.models.config_fields import ConfigFields
from engine.models.rotary import FULL, SLIDING

MAX_WINDOW = 1 << 40
ATTENTION = "attention"  # what Granite 4 calls layers that see everything
_PLAIN = LayerAttention()


def layer_count(config: ConfigFields) -> int:
    return config.integer("num_hidden_layers", 1, 1024)


def declared_window(config: ConfigFields) -> int:
    """`sliding_window`; 0, null or absent is no window."""
    if config.raw("sliding_window") in (None, 0):
        return 0
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


def checked_recurrence(spec: RecurrentSpec, layers: int) -> RecurrentSpec:
    """The same, of a model of so many layers. UnsupportedModel for what does not fit together."""
    if fault := spec.fault(layers):
        raise UnsupportedModel(f"config.json: {fault}")
    return spec


def windows(config: ConfigFields, sliding: Sequence[bool]) -> tuple[LayerAttention, ...]:
    """All layers turn alike; those named have the window."""
    window = declared_window(config)
    return tuple(LayerAttention(window) if has_window else _PLAIN for has_window in sliding)


def unlike(
    config: ConfigFields, sliding: Sequence[bool], of_sliding: RotationKind, of_full: RotationKind
) -> tuple[LayerAttention, ...]:
    """Layers with the window turn in one way, the others in another."""
    window = declared_window(config)
    kinds = (LayerAttention(0, of_full), LayerAttention(window, of_sliding))
    return tuple(kinds[has_window] for has_window in sliding)


def cache_owners(config: ConfigFields, sliding: Sequence[bool], default: int) -> tuple[int, ...]:
    """Whose keys and values each layer reads, -1 = its own: the last `num_kv_shared_layers` read those of the last
    layer of their kind before them. UnsupportedModel where there is no such layer."""
    layers, found = len(sliding), []
    first_shared = layers - config.integer("num_kv_shared_layers", 0, layers - 1, default)
    for layer, is_sliding in enumerate(sliding):
        alike = [other for other in range(first_shared) if sliding[other] == is_sliding]
        if layer >= first_shared and not alike:
            raise UnsupportedModel(f"num_kv_shared_layers leaves layer {layer} no layer of its type to read from")
        found.append(alike[-1] if layer >= first_shared else -1)
    return tuple(found)


def every_window(config: ConfigFields) -> tuple[LayerAttention, ...]:
    """`sliding_window` counts for all layers (Mistral, Phi-3) but those that `layer_types` calls full."""
    return windows(config, sliding_layers(config, lambda _: True))


def switched_window(config: ConfigFields) -> tuple[LayerAttention, ...]:
    """Qwen: it counts with `use_sliding_window`, from layer `max_window_layers` on, or for the layers listed."""
    is_on = config.flag("use_sliding_window", False)
    first = config.integer("max_window_layers", 0, 1024, 28) if is_on else 0
    return windows(config, sliding_layers(config, lambda layer: is_on and layer >= first))


def every_nth_full(config: ConfigFields, default: int) -> tuple[bool, ...]:
    """Layers with the window where each `sliding_window_pattern`-th has none."""
    raw = config.raw("sliding_window_pattern")
    if isinstance(raw, str):  # such as LLLG
        if not raw or set(raw) - {"L", "G"}:
            raise CompileError(f"config.json: sliding_window_pattern must be of L and G, it is {brief(raw)}")
        return sliding_layers(config, lambda layer: raw[layer % len(raw)] == "L")
    nth = config.integer("sliding_window_pattern", 1, 1024, default)
    return sliding_layers(config, lambda layer: bool((layer + 1) % nth))
