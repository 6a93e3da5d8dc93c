"""A GGUF file as a source of bundles: its facts as config.json would say them, its tensors, its text."""

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from engine.bundle.manifest import TextSpec
from engine.bundle.weight_files import FLOAT_BYTES
from engine.compile.sources.checkpoint import Checkpoint
from engine.compile.sources.gguf.architectures import (
    ARCHITECTURE,
    CAPS,
    EXPERT_COUNT,
    LONG_FACTORS,
    MULTIPLIERS,
    ROPE_FACTORS,
    Gating,
    GgufArchitecture,
    architecture_of,
)
from engine.compile.sources.gguf.arrangement import FLOAT_TYPES
from engine.compile.sources.gguf.geometry import (
    KEY_LENGTH_OF_WINDOWS,
    PATTERN,
    STREAMS,
    ArchitectureFields,
    GgufGeometry,
    read_geometry,
    several_streams,
    two_heads,
)
from engine.compile.sources.gguf.header import GgufHeader, read_header
from engine.compile.sources.gguf.projector import CLIP, projector_beside, tensors_with_images
from engine.compile.sources.gguf.tensors import gguf_tensors, latent_facts
from engine.compile.sources.gguf.tokenizers import end_ids, write_gguf_text
from engine.compile.sources.gguf.vocabulary import TokenizerFields
from engine.compile.sources.task import BARE
from engine.errors import CompileError, UnsupportedModel
from engine.models.mamba2 import EXPERTS as EXPERT_LAYER
from engine.models.mamba2 import FEED_FORWARD
from engine.models.post_norm_families import IS_STACKED
from engine.models.recurrent_families import ATTENTION_LAYER, CONVOLUTION, RECURRENT_LAYER
from engine.models.rotary import DEFAULT_THETA, FULL, MAX_POSITIONS, SLIDING

# What changes the network's arithmetic, and is refused unless the table names it for an architecture; 0 is absent.
FOREIGN = (EXPERT_COUNT, *(*MULTIPLIERS.values(), *CAPS.values()), "attention.temperature_scale", "attention.clamp_kqv")
WITH_EXPERTS = {"llama": "MixtralForCausalLM"}
WITH_WINDOW = {"llama": "MistralForCausalLM", "olmo2": "Olmo3ForCausalLM"}
GEMMA_LARGEST = {"gemma2": 46, "gemma3": 62, "gemma-embedding": 0}  # layers of the 27B models
# The base of layers with a window, where the file does not say, 0 = that of the others.
TWO_BASES = dict.fromkeys(("gemma3", "gemma3n", "gemma4", "gemma-embedding", "modern-bert"), 10_000.0) | {"olmo2": 0.0}
UNSAID_WINDOWS = {"gemma2": 4096}  # of files made before the key was; llama.cpp takes the same
WITHOUT_TRUNCATION = ("gpt-oss",)  # whose ramp of YaRN begins and ends between frequencies
NO_POOLING, LAST_TOKEN = 0, 3  # of `pooling_type`; files of chat models have none
POOLINGS = {NO_POOLING: "mean", 1: "mean", 2: "cls", LAST_TOKEN: "lasttoken"}  # of encoders
SECTIONS = "rope.dimension_sections"  # pairs that turn by time, row and column, and by nothing else
KEY_HEADS, FFN = "attention.head_count_kv", "feed_forward_length"
EXPERT_FFN, NORMALISED = "expert_feed_forward_length", "expert_weights_norm"
STACKED_ATTENTION = "model.layers.0.self_attn.qkv_proj"
ROOT_EPSILON, DEVIATION_EPSILON = "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"


def network_config(
    header: GgufHeader, architecture: GgufArchitecture, geometry: GgufGeometry, tensors: Checkpoint
) -> dict[str, object]:
    """As `read_network` takes it. CompileError for metadata that is missing or no number, UnsupportedModel by name."""
    fields = ArchitectureFields(header, architecture.name)
    for key in FOREIGN:
        if key not in architecture.keys.values() and fields.number(key, -1e30, 1e30, 0.0):
            raise UnsupportedModel(f"{fields.title}: {architecture.name}.{key} is not supported")
    gating = fields.integer("expert_gating_func", 0, 1 << 16, Gating.UNTOLD)
    is_other = gating != Gating.UNTOLD and (gating == Gating.SIGMOID) != (architecture.gating is Gating.SIGMOID)
    if is_other and not architecture.has_latents:
        raise UnsupportedModel(f"{fields.title}: {architecture.name}.expert_gating_func {gating} is not supported")
    window = fields.integer("attention.sliding_window", 0, 1 << 40, UNSAID_WINDOWS.get(fields.name, 0))
    turned = fields.integer("rope.dimension_count", 2, 1024, geometry.head_dim)
    others = (WITH_WINDOW if window else {}) | (WITH_EXPERTS if fields.number(EXPERT_COUNT, 0.0, 4096.0, 0.0) else {})
    family = others.get(architecture.name, architecture.family)
    is_bare = not architecture.is_encoder and _is_embedder(fields)
    epsilon = DEVIATION_EPSILON if fields.has(DEVIATION_EPSILON) else ROOT_EPSILON
    turns = architecture.is_encoder or fields.flag("rope.scaling.finetuned", True)
    has_bias = f"model.layers.{geometry.layers - 1}.self_attn.q_proj.bias" in tensors
    return {
        "architectures": [f"{family.removesuffix('ForCausalLM')}{BARE}" if is_bare else family],
        "hidden_size": fields.integer("embedding_length", 1, 1 << 16),
        "num_hidden_layers": geometry.layers,
        "num_attention_heads": geometry.heads,
        **_key_heads(fields, geometry, architecture.has_blocks),
        "head_dim": geometry.head_dim,
        "intermediate_size": _ffn(fields, geometry, architecture.has_blocks),
        "vocab_size": tensors.shape("token_embd.weight")[0],
        "max_position_embeddings": fields.integer("context_length", 1, MAX_POSITIONS),
        "rms_norm_eps": fields.number(epsilon, 1e-14, 1.0),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "attention_bias": has_bias or f"{STACKED_ATTENTION}.bias" in tensors,
        IS_STACKED: f"{STACKED_ATTENTION}.weight" in tensors,
        "use_bias": has_bias,
        "mlp_bias": "model.layers.0.mlp.gate_proj.bias" in tensors,
        **_windows(fields, geometry, window),
        **{name: fields.number(key, 0.0, 1e6, None) for name, key in architecture.keys.items() if fields.has(key)},
        **architecture.facts,
        **({"norm_topk_prob": fields.flag(NORMALISED, False)} if fields.has(NORMALISED) else {}),
        # Whether anything turns in Granite 4-H.
        **({} if architecture.is_encoder else {"position_embedding_type": "rope" if turns else None}),
        "use_qk_norm": "model.layers.0.self_attn.q_norm.weight" in tensors,
        "mamba_rms_norm": "model.layers.0.mamba.norm.weight" in tensors,
        **_of_gemma(architecture, geometry, fields),
        "partial_rotary_factor": turned / geometry.head_dim,
        "rope_parameters": _rope(fields, tensors, turned, family),
        **_recurrent(geometry),
        **(latent_facts(fields, geometry, _full_rope(fields, tensors, turned)) if architecture.has_latents else {}),
        **(two_heads(fields, geometry, tensors) if fields.has(KEY_LENGTH_OF_WINDOWS) else {}),
        **(several_streams(fields, geometry, tensors) if fields.has(STREAMS) else {}),
        **(_encoder(fields, tensors, window, epsilon) if architecture.is_encoder else {}),
    }


def _key_heads(fields: ArchitectureFields, geometry: GgufGeometry, has_blocks: bool) -> dict[str, object]:
    """A number, or one for each layer: those with none have short convolutions, or a state, or are feed-forwards."""
    if fields.has(KEY_LENGTH_OF_WINDOWS):
        return {"num_key_value_heads": fields.each(KEY_HEADS, geometry.layers, 1, geometry.heads)[0]}
    if not fields.is_array(KEY_HEADS):
        return {"num_key_value_heads": fields.integer(KEY_HEADS, 1, geometry.heads, geometry.heads)}
    counts = fields.each(KEY_HEADS, geometry.blocks, 0, 1024)[: geometry.layers]
    if len(set(counts) - {0}) != 1:
        raise UnsupportedModel(f"{fields.title}: {fields.key(KEY_HEADS)} that differ between layers are not supported")
    if has_blocks:
        return {"num_key_value_heads": max(counts)} | _blocks(fields, counts, geometry.blocks)
    other = RECURRENT_LAYER if fields.has("ssm.state_size") else CONVOLUTION
    kinds = [ATTENTION_LAYER if count else other for count in counts]
    return {"num_key_value_heads": max(counts)} | ({"layer_types": kinds} if 0 in counts else {})


def _blocks(fields: ArchitectureFields, counts: tuple[int, ...], told: int) -> dict[str, object]:
    """Of what kind each layer of Nemotron-H is: Mamba2 has neither heads of keys nor a feed-forward. told: layers with
    those that draft."""
    widths = fields.each(FFN, told, 0, 1 << 20)[: len(counts)]
    forward = EXPERT_LAYER if fields.has(EXPERT_COUNT) else FEED_FORWARD
    mixers = [ATTENTION_LAYER if count else RECURRENT_LAYER for count in counts]
    kinds = [forward if width else mixer for mixer, width in zip(mixers, widths, strict=True)]
    inner, heads = fields.integer("ssm.inner_size", 1, 1 << 20), fields.integer("ssm.time_step_rank", 1, 1024)
    return {"layers_block_type": kinds, "mamba_head_dim": inner // heads}


def _encoder(fields: ArchitectureFields, tensors: Checkpoint, window: int, epsilon: str) -> dict[str, object]:
    """What configs of encoders say under keys of their own. UnsupportedModel for a file that scores."""
    pooling = fields.integer("pooling_type", NO_POOLING, 1 << 31, NO_POOLING)
    if pooling not in POOLINGS:
        raise UnsupportedModel(f"{fields.title}: {fields.key('pooling_type')} {pooling} is not supported (0 to 3 are)")
    types = "embeddings.token_type_embeddings.weight"
    every = fields.integer(PATTERN, 1, 1024) if fields.has(PATTERN) and not fields.is_array(PATTERN) else None
    return {
        "pooling_mode": POOLINGS[pooling],
        "layer_norm_eps": fields.number(epsilon, 1e-14, 1.0),
        "type_vocab_size": tensors.shape(types)[0] if types in tensors else None,
        "local_attention": window or None,
        "global_attn_every_n_layers": every,
    }


def _ffn(fields: ArchitectureFields, geometry: GgufGeometry, has_blocks: bool) -> int:
    """Of all layers that have one, or of the first where layers are of two kinds. UnsupportedModel where others
    differ."""
    widths = fields.each(FFN if fields.has(FFN) else EXPERT_FFN, geometry.blocks, 1 - has_blocks, 1 << 20)
    if len(set(widths) - {0}) > 1 and not fields.has(KEY_LENGTH_OF_WINDOWS):
        raise UnsupportedModel(f"{fields.title}: {fields.key(FFN)} that differs between layers is not supported")
    return next(filter(None, widths), 0)


def _windows(fields: ArchitectureFields, geometry: GgufGeometry, window: int) -> dict[str, object]:
    """The pattern is a flag for each layer, or the distance of layers without the window."""
    found: dict[str, object] = {"use_sliding_window": bool(window), "max_window_layers": 0}
    found["sliding_window"] = window or None
    if window and fields.is_array(PATTERN):
        flags = fields.flags(PATTERN, geometry.layers) or ()
        found["layer_types"] = [SLIDING if flag else FULL for flag in flags]
    elif window and fields.has(PATTERN):
        found["sliding_window_pattern"] = fields.integer(PATTERN, 1, 1024)
    return found


def _of_gemma(architecture: GgufArchitecture, geometry: GgufGeometry, fields: ArchitectureFields) -> dict[str, object]:
    """Files do not say it: the head's size, but in the largest models what the width leaves for each head."""
    largest = GEMMA_LARGEST.get(architecture.name)
    if largest is None:
        return {}
    share = fields.integer("embedding_length", 1, 1 << 16) // geometry.heads
    return {"query_pre_attn_scalar": share if geometry.layers == largest else geometry.head_dim}


def _is_embedder(fields: ArchitectureFields) -> bool:
    """Whether the file says that its vectors are those of last tokens. UnsupportedModel for another way."""
    pooling = fields.integer("pooling_type", NO_POOLING, 1 << 31, NO_POOLING)
    if pooling not in (NO_POOLING, LAST_TOKEN):
        key = f"{fields.title}: {fields.key('pooling_type')}"
        raise UnsupportedModel(f"{key} {pooling} is not supported (supported: 3, the last token)")
    return pooling == LAST_TOKEN


def _recurrent(geometry: GgufGeometry) -> dict[str, object]:
    """Layers with a state, for the family that has them; their last layer has attention, as everywhere else."""
    spec, layers = geometry.recurrent, range(geometry.layers)
    if spec is None:
        return {}
    return {
        "layer_types": [RECURRENT_LAYER if layer in spec.layers else ATTENTION_LAYER for layer in layers],
        "linear_num_key_heads": spec.key_heads,
        "linear_num_value_heads": spec.value_heads,
        "linear_key_head_dim": spec.key_dim,
        "linear_value_head_dim": spec.value_dim,
        "linear_conv_kernel_dim": spec.kernel,
    }


def _rope(fields: ArchitectureFields, tensors: Checkpoint, turned: int, family: str) -> Mapping[str, object]:
    """Of layers without a window, and of those with one where the family tells them apart."""
    full = _full_rope(fields, tensors, turned)
    if fields.name not in TWO_BASES or family != WITH_WINDOW.get(fields.name, family):
        return full
    local = fields.number("rope.freq_base_swa", 1.0, 1e12, TWO_BASES[fields.name] or full["rope_theta"])
    return {FULL: full, SLIDING: {"rope_type": "default", "rope_theta": local}}


def _full_rope(fields: ArchitectureFields, tensors: Checkpoint, turned: int) -> dict[str, Any]:
    """Scaling by a rule, or by the lists of factors that converters write for Llama 3's rule and for longrope."""
    theta: dict[str, Any] = {"rope_theta": fields.number("rope.freq_base", 1.0, 1e12, DEFAULT_THETA)}
    if fields.is_array(SECTIONS):
        theta["mrope_section"] = list(fields.each(SECTIONS, 4, 0, 1024))[:3]
    if all(name in tensors for name in LONG_FACTORS.values()):
        original = fields.integer("rope.scaling.original_context_length", 1, MAX_POSITIONS)
        lists = {key: tensors.tensor(name, (turned // 2,)).tolist() for key, name in LONG_FACTORS.items()}
        stretch = fields.number("rope.scaling.attn_factor", 1e-3, 1e3, 1.0)
        facts = {"rope_type": "longrope", "original_max_position_embeddings": original, "attention_factor": stretch}
        return facts | lists | theta
    if ROPE_FACTORS in tensors:
        factors = tensors.tensor(ROPE_FACTORS, (turned // 2,))
        if not np.all(factors > 0):
            raise CompileError(f"{fields.title}: {ROPE_FACTORS} holds numbers that are not positive")
        return {"rope_type": "factors", "factors": factors.tolist()} | theta
    factor = fields.number("rope.scaling.factor", 0.0, 1e6, fields.number("rope.scale_linear", 0.0, 1e6, 0.0))
    kind = fields.text("rope.scaling.type", "linear" if factor else "none")
    if kind == "yarn":
        return _yarn(fields, factor) | theta
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return theta
    return {"rope_type": kind, "factor": factor} | theta


def _yarn(fields: ArchitectureFields, factor: float) -> dict[str, object]:
    """The file's factor of attention comes on top of what follows from the scaling."""
    grown = 0.1 * math.log(max(factor, 1.0))
    stretch = (1.0 + grown) * fields.number("rope.scaling.attn_factor", 1e-3, 1e3, 1.0)
    if fields.name == "mistral3":
        stretch /= 1.0 + grown * fields.number("rope.scaling.yarn_log_multiplier", 0.0, 1e3, 0.0)
    return {
        "rope_type": "yarn",
        "llama_4_scaling_beta": fields.number("attention.temperature_scale", 0.0, 1e3, 0.0),
        "truncate": fields.name not in WITHOUT_TRUNCATION,
        "factor": factor,
        "original_max_position_embeddings": fields.integer("rope.scaling.original_context_length", 1, MAX_POSITIONS),
        "beta_fast": fields.number("rope.scaling.yarn_beta_fast", 1e-3, 1e6, 32.0),
        "beta_slow": fields.number("rope.scaling.yarn_beta_slow", 1e-3, 1e6, 1.0),
        "attention_factor": stretch,
    }


class GgufSource:
    """The facts are read at once, tensors and text when they are asked for. with_images: a file beside it that reads
    images (mmproj) belongs to the model."""

    def __init__(self, path: Path, with_images: bool = True) -> None:
        self._header = read_header(path)
        if self._header.metadata.get(ARCHITECTURE) == CLIP:
            raise UnsupportedModel(f"{path.name} reads images for a model: name the model's file, which lies beside it")
        self._architecture = architecture_of(self._header)
        self._geometry = read_geometry(self._header, self._architecture)
        self._projector, self.remark = projector_beside(path, self._header) if with_images else (None, "")
        with gguf_tensors(self._header, self._architecture, self._geometry) as tensors:
            self.config = network_config(self._header, self._architecture, self._geometry, tensors)
        if self._projector is not None:
            self.config |= {"model_type": self._architecture.name} | self._projector.config(self._architecture.name)

    def float_bytes(self) -> int:
        """By the types of its tensors of two axes and more."""
        matrices = [stored for stored in self._header.tensors.values() if len(stored.shape) > 1]
        if any(stored.kind not in FLOAT_TYPES for stored in matrices):
            return 0
        return sum(FLOAT_BYTES * math.prod(stored.shape) for stored in matrices)

    def end_ids(self) -> tuple[int, ...]:
        """Of its header and of the names of its control tokens."""
        fields = TokenizerFields(self._header)
        return tuple(end_ids(fields, fields.vocabulary()))

    def tensors(self) -> AbstractContextManager[Checkpoint]:
        text = gguf_tensors(self._header, self._architecture, self._geometry)
        return text if self._projector is None else tensors_with_images(text, self._projector)

    def processor(self) -> dict[str, object]:
        return {} if self._projector is None else self._projector.processor()

    def write_text(self, folder: Path, vocab: int) -> TextSpec:
        return write_gguf_text(self._header, folder, vocab)
