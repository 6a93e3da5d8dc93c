"""How many parameters a network has, from its geometry."""

from engine.bundle.model_spec import ModelSpec
from engine.bundle.specs import RecurrentKind
from engine.models.network import FamilyDetails, Network, QkNorm


def parameters_of(network: Network) -> int:
    """Of all tensors; a tied head counts once."""
    spec, details, names = network.spec, network.details, network.details.names
    norms = (names.attention_norm, names.attention_post_norm, names.ffn_post_norm)
    total = spec.layers * (sum(map(bool, norms)) * spec.hidden + bool(names.layer_scale))
    total += sum(bool(network.ffn_norm(layer)) for layer in range(spec.layers)) * spec.hidden
    total += sum(_of_attention(network, layer) for layer in spec.attention_layers)
    total += _of_recurrence(spec, details) + _of_experts(spec, details)
    total += _of_layer_inputs(network) + _of_streams(network)
    dense = (network.ffn_of(layer) for layer in range(spec.layers) if layer not in network.expert_layers)
    matrices = details.activation.matrices
    total += sum((matrices + 1) * spec.hidden * n + (matrices * n + spec.hidden) * details.ffn_bias for n in dense)
    return total + spec.vocab * spec.hidden * (1 if spec.tied_head else 2) + spec.hidden


def _of_attention(network: Network, layer: int) -> int:
    spec, details, heads = network.spec, network.details, network.heads_of(layer)
    total = sum(network.qkv_outputs(layer)) * (spec.hidden + details.qkv_bias)
    total += network.attended_width(layer) * spec.hidden + spec.hidden * details.output_bias
    total += spec.heads * spec.has_sinks
    if (latent := details.latent) is not None:
        total += latent.query_rank * (1 + heads.query_width)
        return total + latent.kv_rank * (1 + spec.heads * (latent.kept + latent.value_dim))
    has_keys = spec.owner_of(layer) == layer
    if details.qk_norm is QkNorm.ALL:
        return total + heads.query_width + heads.key_width * has_keys
    return total + (1 + has_keys) * heads.head_dim * details.has_qk_norm


def _of_layer_inputs(network: Network) -> int:
    spec, inputs = network.spec, network.details.layer_inputs
    if inputs is None:
        return 0
    width = spec.layers * inputs.size
    return width * (inputs.vocab + spec.hidden) + inputs.size + 2 * width * spec.hidden + spec.layers * spec.hidden


def _of_streams(network: Network) -> int:
    """What makes several streams of one and one of several, and how each layer mixes them."""
    hidden, altup = network.spec.hidden, network.details.altup
    if altup is None:
        return 0
    count = altup.count
    layer = (count + 3 + 2 * altup.rank) * hidden + count**3 + count**2
    return 2 * (count - 1) * hidden**2 + network.spec.layers * layer


def _of_experts(spec: ModelSpec, details: FamilyDetails) -> int:
    """Of the layers with experts, norms not counted but for those of experts beside a feed-forward."""
    experts = spec.experts
    if experts is None or details.experts is None:
        return 0
    names, biases = details.experts.names, any(form.biases for form in details.experts.names.forms)
    matrices = details.activation.matrices
    one = (matrices + 1) * spec.hidden * experts.ffn + (matrices * experts.ffn + spec.hidden) * biases
    router = experts.count * (spec.hidden + details.experts.has_router_bias + bool(names.choice_bias))
    shared = (matrices + 1) * spec.hidden * experts.shared + spec.hidden * bool(names.shared_gate)
    layer = experts.count * one + router + shared
    beside = details.experts.beside and 4 * spec.hidden + experts.count
    return len(experts.layers) * (layer + (beside or 0))


def _of_recurrence(spec: ModelSpec, details: FamilyDetails) -> int:
    """Of the layers without keys and values, feed-forward and norms around them not counted."""
    recurrent = spec.recurrent
    if recurrent is None:
        return 0
    layer = spec.hidden * (recurrent.inputs + recurrent.value_width) + recurrent.channels * recurrent.kernel
    if recurrent.kind is RecurrentKind.MAMBA2:
        layer += recurrent.channels + 3 * recurrent.value_heads
        layer += recurrent.value_width * bool(details.recurrent_names.norm)
    elif recurrent.has_memory:
        layer += 2 * recurrent.value_heads * (spec.hidden + 1) + recurrent.value_dim
    return len(recurrent.layers) * layer
