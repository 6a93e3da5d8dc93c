"""Text models of checkpoints that also read images: Gemma 3, and Mistral 3, which is served without these.

Definitions: transformers `Gemma3ForConditionalGeneration` and `Mistral3ForConditionalGeneration`; names are those of
saved files.
"""

from dataclasses import replace

from engine.errors import UnsupportedModel
from engine.files import brief
from engine.models.config_fields import ConfigFields
from engine.models.dense_families import MINISTRAL3, MISTRAL
from engine.models.network import Family, FamilyDetails, WeightNames
from engine.models.post_norm_families import GEMMA3
from engine.models.qwen3_5 import nested

ROOT = "language_model."
_IMAGES = ("vision_tower.", "multi_modal_projector.")
_MISTRALS = {"mistral": MISTRAL, "ministral3": MINISTRAL3}


def _within(details: FamilyDetails) -> FamilyDetails:
    """The same with the names that its tensors have in the larger model."""
    names = WeightNames(**nested(details.names, f"{ROOT}model.") | {"head": f"{ROOT}lm_head"})
    return replace(details, names=names, ignored=_IMAGES)


def _gemma3_details(config: ConfigFields) -> FamilyDetails:
    return replace(_within(GEMMA3.read_details(config)), images_both_ways=True)


def _mistral3_details(config: ConfigFields) -> FamilyDetails:
    kind = config.text("model_type", MISTRAL.name)
    if kind not in _MISTRALS:
        known = ", ".join(_MISTRALS)
        raise UnsupportedModel(f"text_config: model_type {brief(kind)} is not supported (supported: {known})")
    config.integer("head_dim", 2, 1024)  # the classes assume different ones where it is missing
    return _within(_MISTRALS[kind].read_details(config))


GEMMA3_NESTED = replace(
    GEMMA3,
    architecture="Gemma3ForConditionalGeneration",
    read_details=_gemma3_details,
    text_group="text_config",
    # Published configs leave out what the class of their text model says itself.
    text_defaults={
        "vocab_size": 262_208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131_072,
    },
)
MISTRAL3 = Family("mistral3", "Mistral3ForConditionalGeneration", _mistral3_details, text_group="text_config")

TEXT_MODELS = (GEMMA3_NESTED, MISTRAL3)
