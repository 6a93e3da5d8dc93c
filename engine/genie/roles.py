"""What a tensor of a folder's binaries is, and what a graph does, told from tensor names alone. Pure functions."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from engine.bundle.manifest import GraphKind
from engine.bundle.tensors import CARRIED_NAME, EMBEDS, place_of
from engine.bundle.weight_files import WEIGHT_NAME
from engine.errors import BundleError


class Role(StrEnum):
    """What a tensor carries. HIDDEN is what is left over when nothing else fits."""

    IDS = "input_ids"
    EMBEDS = "inputs_embeds"
    MASK = "attention_mask"
    COS = "position_ids_cos"
    SIN = "position_ids_sin"
    CACHE_INDEX = "cache_index"
    KEY = "key"
    VALUE = "value"
    LOGITS = "logits"
    WEIGHT = "weight"
    HIDDEN = "hidden"
    LAYER_EMBEDS = "per_layer_inputs"
    WINDOW_MASK = "swa_attention_mask"
    WINDOW_COS = "swa_position_ids_cos"
    WINDOW_SIN = "swa_position_ids_sin"
    WINDOW_KEY = "window key"
    WINDOW_VALUE = "window value"
    CONV_STATE = "conv_state"
    RECURRENT_STATE = "recurrent_state"
    IMAGE_ROWS = "visual_pos_masks"
    IMAGE_FEATURES = "deepstack_visual_embeds"


CARRIED = {
    "swa_key": Role.WINDOW_KEY,
    "swa_value": Role.WINDOW_VALUE,
    "conv_state": Role.CONV_STATE,
    "recurrent_state": Role.RECURRENT_STATE,
}
WINDOWS = (Role.WINDOW_KEY, Role.WINDOW_VALUE)
STATES = (Role.CONV_STATE, Role.RECURRENT_STATE)
CACHES = (Role.KEY, Role.VALUE, Role.WINDOW_KEY, Role.WINDOW_VALUE)


@dataclass(frozen=True, slots=True)
class Meaning:
    """Role of a tensor and, for keys and values, its absolute layer; head: -1 = all of them in one tensor."""

    role: Role
    layer: int = -1
    head: int = -1


FIXED_NAMES = {
    **{role.value: role for role in (Role.IDS, Role.MASK, Role.COS, Role.SIN, Role.CACHE_INDEX, Role.LOGITS)},
    **dict.fromkeys(EMBEDS, Role.EMBEDS),
    **{role.value: role for role in (Role.LAYER_EMBEDS, Role.WINDOW_MASK, Role.WINDOW_COS, Role.WINDOW_SIN)},
    Role.IMAGE_ROWS.value: Role.IMAGE_ROWS,
}
_SIDES = (Role.KEY, Role.VALUE)

# Looked for before anything else but caches: a name that fits here is never a hidden state.
UNSERVED = (
    (re.compile(r"(^|_)(recurrent|conv|ssm)_state"), "is the state of a recurrent layer under a name not known here"),
    (re.compile(r"(^|_)swa_"), "belongs to sliding window attention, under a name that is not known here"),
    (re.compile(r"^per_layer_inputs"), "is an extra embedding for each layer under a name that is not known here"),
    (re.compile(r"(^|_)(key|value)_\d+.*_(in|out)$"), "is a cache under a name that is not known here"),
    (re.compile(r"^(deepstack|visual|vision|image_embed)"), "carries image features, which are not supported"),
)
IMAGE_FEATURES = re.compile(r"deepstack_visual_embeds_\d+")
_IMAGE = re.compile(r"^(pixel_values|image|images|image_patches|vision_input)")


def meaning(name: str) -> Meaning:
    """What a tensor of this name is. BundleError for names of contracts that cannot be served."""
    if (cache := _cache(name)) is not None:
        return cache
    if name in FIXED_NAMES:
        return Meaning(FIXED_NAMES[name])
    if IMAGE_FEATURES.fullmatch(name):
        return Meaning(Role.IMAGE_FEATURES)
    for pattern, reason in UNSERVED:
        if pattern.search(name):
            raise BundleError(f"tensor {name} {reason}")
    return Meaning(_plain_role(name))


def classify(inputs: Sequence[str], outputs: Sequence[str]) -> GraphKind:
    """The kind of a graph from the names of its tensors. The last part's output counts as logits only under that name;
    `engine/genie/parts.py` knows exports that name it otherwise."""
    taken = [role for name in inputs if (role := _role(name)) is not Role.WEIGHT]
    starts = Role.IDS in taken or Role.EMBEDS in taken
    given = [_role(name) for name in outputs]
    caches = [role in (*CACHES, *STATES) for role in given]
    rules = (
        (any(_IMAGE.match(name) for name in inputs), GraphKind.IMAGE_ENCODER),
        (Role.LOGITS in given and starts, GraphKind.DEFAULT),
        (bool(caches) and all(caches), GraphKind.DECODER_PREFILL),
        (any(caches), GraphKind.DECODER),
        (len(given) == 1 and Role.MASK in taken, GraphKind.DECODER),  # layers that keep nothing
        (given == [Role.LOGITS] and taken == [Role.HIDDEN], GraphKind.LMHEAD),
        (taken == [Role.IDS] and given == [Role.HIDDEN], GraphKind.LUT),
    )
    return next((kind for fits, kind in rules if fits), GraphKind.NONE)


def _role(name: str) -> Role:
    cache = _cache(name)
    return _plain_role(name) if cache is None else cache.role


def _plain_role(name: str) -> Role:
    return Role.WEIGHT if WEIGHT_NAME.fullmatch(name) else FIXED_NAMES.get(name, Role.HIDDEN)


def _cache(name: str) -> Meaning | None:
    if (place := place_of(name, "_in") or place_of(name, "_out")) is not None:
        return Meaning(_SIDES[place.side], place.layer, -1 if place.head is None else place.head)
    found = CARRIED_NAME.fullmatch(name)
    return Meaning(CARRIED[found[1]], int(found[2]), int(found[3] or -1)) if found else None
