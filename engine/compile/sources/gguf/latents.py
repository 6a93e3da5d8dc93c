"""Files with latent attention: what config.json would say of it, and the one matrix that newer files store in two."""

import numpy as np

from engine.compile.quantisation.methods.blocks import BlockForm, Blocks
from engine.compile.sources.checkpoint import CheckpointView, Float32
from engine.compile.sources.gguf.architectures import KEY_UP, KV_UP, VALUE_UP
from engine.compile.sources.gguf.geometry import ArchitectureFields, GgufGeometry
from engine.errors import CompileError, UnsupportedModel

SOFTMAX, SIGMOID = 1, 2  # of `expert_gating_func`
GATING = {SOFTMAX: "DeepseekV2ForCausalLM", SIGMOID: "Glm4MoeLiteForCausalLM"}
LOG_MULTIPLIER = "rope.scaling.yarn_log_multiplier"  # a tenth of what checkpoints call mscale_all_dim
_MODULE = KV_UP.rpartition(".")[2]


def latent_facts(fields: ArchitectureFields, geometry: GgufGeometry, rope: dict[str, object]) -> dict[str, object]:
    """rope: as `network_config` has it. UnsupportedModel for another way to score experts."""
    gating = fields.integer("expert_gating_func", 0, 1 << 16, SOFTMAX) or SOFTMAX
    if gating not in GATING:
        raise UnsupportedModel(f"{fields.title}: {fields.key('expert_gating_func')} {gating} is not supported")
    turned = fields.integer("rope.dimension_count", 2, geometry.head_dim - 1)
    old_value = fields.integer("attention.value_length", 1, 1 << 16, geometry.head_dim)
    weight = 10 * fields.number(LOG_MULTIPLIER, 0.0, 1e3, 0.0)
    if weight:
        rope = {key: value for key, value in rope.items() if key != "attention_factor"}
        rope |= {"mscale": weight, "mscale_all_dim": weight}
    has_groups = fields.number("expert_group_count", 0.0, 4096.0, 1.0) > 1
    return {
        "architectures": [GATING[gating]],
        "q_lora_rank": fields.integer("attention.q_lora_rank", 0, 1 << 16, 0),
        "kv_lora_rank": fields.integer("attention.kv_lora_rank", 1, 1 << 16),
        "qk_rope_head_dim": turned,
        "qk_nope_head_dim": geometry.head_dim - turned,
        "v_head_dim": fields.integer("attention.value_length_mla", 1, 1024, old_value),
        "norm_topk_prob": fields.flag("expert_weights_norm", False),
        "topk_method": "group_limited_greedy" if has_groups else "greedy",
        "partial_rotary_factor": 1.0,
        "rope_parameters": rope,
    }


class SplitLatents(CheckpointView):
    """As `inner`, with what makes keys and values [H * (K + V), R] of the two tensors [H, R, K] and [H, V, R]."""

    def __contains__(self, name: str) -> bool:
        return name in self.inner or self._halves(name) is not None

    def shape(self, name: str) -> tuple[int, ...]:
        halves = self._halves(name)
        if halves is None:
            return self.inner.shape(name)
        keys, values = map(self.inner.shape, halves)
        if len(keys) != 3 or len(values) != 3 or (keys[0], keys[1]) != (values[0], values[2]):
            raise CompileError(f"tensors {halves[0]} and {halves[1]} do not belong together: {keys}, {values}")
        return keys[0] * (keys[2] + values[1]), keys[1]

    def stored_bytes(self, name: str) -> int:
        halves = self._halves(name)
        return self.inner.stored_bytes(name) if halves is None else sum(map(self.inner.stored_bytes, halves))

    def require(self, name: str, shape: tuple[int, ...]) -> None:
        halves = self._halves(name)
        if halves is None:
            self.inner.require(name, shape)
            return
        if self.shape(name) != shape:
            raise CompileError(f"tensor {name} has shape {self.shape(name)}, the metadata makes it {shape}")
        for half in halves:
            self.inner.require(half, self.inner.shape(half))

    def tensor(self, name: str, shape: tuple[int, ...]) -> Float32:
        halves = self._halves(name)
        if halves is None:
            return self.inner.tensor(name, shape)
        self.require(name, shape)
        keys, values = (self.inner.tensor(half, self.inner.shape(half)) for half in halves)
        return np.concatenate([keys.swapaxes(1, 2), values], axis=1).reshape(shape)

    def rows(self, name: str, start: int, stop: int) -> Float32:
        if self._halves(name) is None:
            return self.inner.rows(name, start, stop)
        return self.tensor(name, self.shape(name))[start:stop]

    def blocks(self, name: str, start: int, stop: int) -> Blocks | None:
        """None for the two tensors: one of them lies across its blocks."""
        return None if self._halves(name) else self.inner.blocks(name, start, stop)

    def form(self, name: str) -> BlockForm | None:
        return None if self._halves(name) else self.inner.form(name)

    def _halves(self, name: str) -> tuple[str, str] | None:
        if f".{_MODULE}." not in name or name in self.inner:
            return None
        keys, values = (name.replace(_MODULE, up.rpartition(".")[2]) for up in (KEY_UP, VALUE_UP))
        return (keys, values) if keys in self.inner and values in self.inner else None
