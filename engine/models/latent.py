"""Latent attention (MLA): keys and values made of a few numbers of each token. DeepSeek-V2, arXiv 2405.04434."""

from dataclasses import dataclass

from engine.errors import UnsupportedModel
from engine.models.config_fields import ConfigFields

_AT = "model.layers.{layer}.self_attn"


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Queries are of `query_rank` numbers (0 = of the stream), keys and values of `kv_rank`, normed.

    A head has `kept` numbers that do not turn and `turned` that do, which all heads' keys have in common; its values
    have `value_dim`. epsilon: of the norms of both latents. The first names are modules that read the stream.
    """

    query_rank: int
    kv_rank: int
    kept: int
    turned: int
    value_dim: int
    epsilon: float = 1e-6
    query_norm: str = f"{_AT}.q_a_layernorm"
    query_up: str = f"{_AT}.q_b_proj"
    kv_norm: str = f"{_AT}.kv_a_layernorm"
    kv_up: str = f"{_AT}.kv_b_proj"

    @property
    def head_dim(self) -> int:
        """Of queries and keys; values are filled up with zeros."""
        return self.turned + self.kept

    @property
    def names(self) -> tuple[str, str]:
        """What reads the stream: queries or their latents, then the latents of keys and values."""
        return f"{_AT}.{'q_a_proj' if self.query_rank else 'q_proj'}", f"{_AT}.kv_a_proj_with_mqa"


def read_latent(config: ConfigFields, query_rank: int) -> LatentAttention:
    """query_rank: where the config has no such key. UnsupportedModel for values that are wider than keys."""
    declares = "q_lora_rank" in config.names()
    rank = config.integer("q_lora_rank", 0, 1 << 16, 0 if declares else query_rank)
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
