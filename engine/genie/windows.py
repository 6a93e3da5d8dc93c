"""Layers that see a window of a folder's graphs, and what of a folder is not served although it is there."""

import logging
from dataclasses import replace
from pathlib import Path

from engine.bundle.model_spec import RopeSpec
from engine.errors import BundleError
from engine.genie.config import CONFIG_FILE, MAX_TOKENS, Fields, GenieConfig
from engine.genie.extras import genie_rope
from engine.genie.roles import Role
from engine.genie.text import read_metadata
from engine.genie.variants import Variant

log = logging.getLogger("hexserve.genie")


def read_window(config: GenieConfig, model: Fields, variant: Variant) -> tuple[int, RopeSpec | None]:
    """How far back rows of window caches see, and the rotation of their layers; (0, None) where there are none.

    The window is what cache-groups or config.json tells. BundleError where neither does, or no rotation is told.
    """
    cos = next((slot for part in variant.body if (slot := part.input_of(Role.WINDOW_COS)) is not None), None)
    if cos is None:
        return 0, None
    window = config.window or model.integer("sliding_window", 1, MAX_TOKENS, 0)
    if not window:
        raise BundleError(f"{CONFIG_FILE}: cache-groups tells no window-size for tensor {cos.name}'s layers")
    if not config.local_position.has("rope-theta"):
        raise BundleError(f"{CONFIG_FILE}: no positional encoding of the layers that see a window (prefix swa_)")
    own = replace(config, position=config.local_position)
    return window, genie_rope(own, Fields({}, "config.json: "), int(cos.spec.shape[-1]) * 2, variant.context)


def tell_images(folder: Path) -> None:
    """Say in the log that images are not read, where the folder has an encoder of them."""
    sees = read_metadata(folder).group("genie").values.get("supports_vision") is True
    if sees or any(folder.glob("vision_encoder*.bin")):
        log.warning("%s has an encoder of images, which is not served: the model answers text only", folder.name)
