"""SDAR: the network of Qwen3, trained to denoise blocks. Logits of a position are about that position itself."""

from dataclasses import replace

from engine.bundle.manifest import DiffusionSpec
from engine.models.config_fields import ConfigFields
from engine.models.network import Family, FamilyDetails
from engine.models.qwen3 import QWEN3

MAX_BLOCK = 1024
DEFAULT_BLOCK = 4  # of the checkpoints whose names say nothing else


def _details(config: ConfigFields) -> FamilyDetails:
    vocabulary = config.integer("vocab_size", 1, 1 << 22)
    diffusion = DiffusionSpec(
        block_length=config.integer("block_size", 1, MAX_BLOCK, DEFAULT_BLOCK),
        mask_token=config.integer("mask_token_id", 0, vocabulary - 1),
    )
    return replace(QWEN3.read_details(config), diffusion=diffusion)


SDAR = Family("sdar", "SDARForCausalLM", _details, default_head_dim=QWEN3.default_head_dim)
