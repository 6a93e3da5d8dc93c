"""How large a network of a GGUF file is, which the places of its numbers depend on."""

from dataclasses import dataclass

from engine.bundle.specs import MOST_KERNEL, RecurrentSpec
from engine.compile.sources.gguf.architectures import GgufArchitecture
from engine.compile.sources.gguf.fields import ArchitectureFields
from engine.compile.sources.gguf.header import GgufHeader
from engine.errors import CompileError, UnsupportedModel

KEY_LENGTH_OF_WINDOWS = "attention.key_length_swa"  # where layers with a window have heads of their own
FULL_ATTENTION_INTERVAL = 4  # of files that do not say which layers are recurrent


@dataclass(frozen=True, slots=True)
class GgufGeometry:
    """head_dim: rows of one head in the matrix of keys. recurrent: None where all layers have attention.

    drafting: layers behind the others that guess tokens, which the text model does without.
    """

    layers: int
    heads: int
    head_dim: int
    recurrent: RecurrentSpec | None = None
    drafting: int = 0


def read_geometry(header: GgufHeader, architecture: GgufArchitecture) -> GgufGeometry:
    """CompileError when metadata is missing or out of bounds, UnsupportedModel by name."""
    fields = ArchitectureFields(header, architecture.name)
    hidden, heads = fields.integer("embedding_length", 1, 1 << 16), fields.integer("attention.head_count", 1, 1024)
    head_dim = fields.integer("attention.key_length", 2, 1024, max(hidden // heads, 2))
    value_dim = fields.integer("attention.value_length", 2, 1024, head_dim)
    if fields.has(KEY_LENGTH_OF_WINDOWS):
        head_dim = fields.integer(KEY_LENGTH_OF_WINDOWS, 2, 1024)
        value_dim = fields.integer("attention.value_length_swa", 2, 1024, head_dim)
    if architecture.has_latents:
        value_dim = head_dim = fields.integer("attention.key_length_mla", 2, 1024, head_dim)
    if value_dim != head_dim:
        raise UnsupportedModel(f"{fields.title}: keys and values of different lengths are not supported")
    if head_dim % 2:
        raise CompileError(f"{fields.title}: heads of {head_dim} numbers cannot be turned in pairs")
    blocks = fields.integer("block_count", 1, 1024)
    if not (architecture.is_hybrid or architecture.has_blocks):
        return GgufGeometry(blocks, heads, head_dim)
    drafting = fields.integer("nextn_predict_layers", 0, blocks - 1, 0)
    layers = blocks - drafting
    recurrent = _recurrent(fields, layers, blocks) if architecture.is_hybrid else None
    return GgufGeometry(layers, heads, head_dim, recurrent, drafting)


def _recurrent(fields: ArchitectureFields, layers: int, blocks: int) -> RecurrentSpec:
    """Which of the layers are recurrent, and how large. blocks: layers with those that draft."""
    kinds = fields.flags("attention.recurrent_layers", blocks)
    if kinds is None:
        interval = fields.integer("full_attention_interval", 1, 1024, FULL_ATTENTION_INTERVAL)
        kinds = tuple((layer + 1) % interval != 0 for layer in range(layers))
    found = tuple(layer for layer, is_recurrent in enumerate(kinds[:layers]) if is_recurrent)
    if not found:
        raise UnsupportedModel(f"{fields.title}: no layer is recurrent: that is not supported for this architecture")
    heads, inner = fields.integer("ssm.time_step_rank", 1, 1024), fields.integer("ssm.inner_size", 2, 1 << 20)
    value_dim = inner // heads
    if inner % heads or not 2 <= value_dim <= 1024:
        raise CompileError(
            f"{fields.title}: {fields.key('ssm.inner_size')} must be {fields.key('ssm.time_step_rank')} ({heads}) "
            f"times 2 to 1024, it is {inner}"
        )
    spec = RecurrentSpec(
        layers=found,
        key_heads=fields.integer("ssm.group_count", 1, 1024),
        value_heads=heads,
        key_dim=fields.integer("ssm.state_size", 2, 1024),
        value_dim=value_dim,
        kernel=fields.integer("ssm.conv_kernel", 2, MOST_KERNEL),
    )
    if fault := spec.fault(layers):
        raise UnsupportedModel(f"{fields.title}: {fault}")
    return spec
