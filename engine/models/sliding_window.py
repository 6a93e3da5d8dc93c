"""Where a config says that a row sees only the nearest columns, and when that says nothing."""

from engine.models.config_fields import ConfigFields

_MAX_WINDOW = 1 << 40


def declared_window(config: ConfigFields) -> int | None:
    """`sliding_window` counts by itself (Mistral, Phi-3); null or absent is no window."""
    if config.raw("sliding_window") is None:
        return None
    return config.integer("sliding_window", 1, _MAX_WINDOW)


def switched_window(config: ConfigFields) -> int | None:
    """Qwen: `sliding_window` counts only with `use_sliding_window` or a layer listed as `sliding_attention`."""
    layer_types = config.raw("layer_types")
    listed = isinstance(layer_types, list) and "sliding_attention" in layer_types
    if not listed and not config.flag("use_sliding_window", False):
        return None
    return declared_window(config)
