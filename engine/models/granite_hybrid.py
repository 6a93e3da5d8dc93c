"""Granite 4: attention among Mamba2 layers or alone, a feed-forward for every token, and experts in some sizes."""

from dataclasses import replace

from engine.bundle.model_spec import LayerAttention, RotationKind
from engine.bundle.specs import RecurrentSpec
from engine.models.config_fields import ConfigFields
from engine.models.dense_families import GRANITE
from engine.models.expert_families import granite_experts
from engine.models.layer_kinds import layer_count, recurrent_layers
from engine.models.mamba2 import ATTENTION, MAMBA, MAMBA_NAMES, mamba2_spec
from engine.models.network import FamilyDetails, WeightNames

# What GGUF files say: gate and up are two matrices, and a feed-forward has its usual names.
SPLIT_MLP = "split_shared_mlp"
_SHARED = "model.layers.{layer}.shared_mlp"
_NAMES = WeightNames(gate_up=(f"{_SHARED}.input_linear",), down=f"{_SHARED}.output_linear")


def _details(config: ConfigFields) -> FamilyDetails:
    kinds = layer_count(config) * (LayerAttention(0, RotationKind.NONE),)
    is_split = config.flag(SPLIT_MLP, False)
    return replace(
        GRANITE.read_details(config),
        names=WeightNames() if is_split else _NAMES,
        recurrent_names=MAMBA_NAMES,
        attention=() if config.raw("position_embedding_type") == "rope" else kinds,
        experts=granite_experts(config, is_split) if config.integer("num_local_experts", 0, 4096, 0) else None,
    )


def _ffn(config: ConfigFields) -> int:
    return config.integer("shared_intermediate_size", 1, 1 << 20)


def read_mamba2(config: ConfigFields, layers: int) -> RecurrentSpec | None:
    """The Mamba2 layers, None where there are none. UnsupportedModel for what is not implemented."""
    found = recurrent_layers(config.raw("layer_types"), layers, MAMBA, ATTENTION)
    return mamba2_spec(config, layers, found) if found else None


GRANITE4 = replace(
    GRANITE,
    name="granitemoehybrid",
    architecture="GraniteMoeHybridForCausalLM",
    read_details=_details,
    read_ffn=_ffn,
    read_recurrent=read_mamba2,
)
