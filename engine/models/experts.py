"""Layers with experts as data: how tokens are routed to them, and where a checkpoint keeps their matrices."""

from dataclasses import dataclass
from enum import StrEnum

from engine.bundle.specs import ExpertSpec
from engine.errors import CompileError
from engine.models.config_fields import ConfigFields

MLP = "model.layers.{layer}.mlp"


class RouterScore(StrEnum):
    """What becomes of the router's outputs."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


class GroupScore(StrEnum):
    """What a group of experts is kept for."""

    BEST = "best"  # its highest score
    BEST_TWO = "best two"  # the sum of its two highest


@dataclass(frozen=True, slots=True)
class Routing:
    """Of one token: the experts with the highest scores, plus their bias where there is one, of the kept groups."""

    score: RouterScore = RouterScore.SOFTMAX
    is_normalised: bool = True  # the scores of those chosen are divided by their sum
    scale: float = 1.0  # what they are multiplied with then
    groups: int = 1
    kept_groups: int = 1
    group_score: GroupScore = GroupScore.BEST

    @property
    def is_usual(self) -> bool:
        """Whether shares are the softmax of the highest outputs of the router."""
        return self.score is RouterScore.SOFTMAX and self.is_normalised and self.kept_groups == self.groups


@dataclass(frozen=True, slots=True)
class ExpertForm:
    """Tensors of the matrices by their whole names, of one expert each where `{expert}` stands in them."""

    gate_up: tuple[str, ...]  # side by side along the outputs
    down: str
    is_turned: bool = False  # [inputs, outputs]
    is_interleaved: bool = False  # gate and up take turns
    biases: tuple[str, ...] = ()  # of each tensor of gate_up and of down, stacked alike, () = there are none

    @property
    def is_stacked(self) -> bool:
        """Whether all experts lie in one tensor."""
        return "{expert}" not in self.down


def form_of_each(experts: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj") -> ExpertForm:
    """Three modules for each expert."""
    at = f"{experts}.{{expert}}"
    return ExpertForm((f"{at}.{gate}.weight", f"{at}.{up}.weight"), f"{at}.{down}.weight")


def stacked_form(experts: str) -> ExpertForm:
    """Three tensors of all experts, as GGUF files have them."""
    return ExpertForm((f"{experts}.gate_proj.weight", f"{experts}.up_proj.weight"), f"{experts}.down_proj.weight")


def usual_forms(experts: str) -> tuple[ExpertForm, ...]:
    """Each expert by itself, all in one tensor, or as GGUF files have them."""
    one = ExpertForm((f"{experts}.gate_up_proj",), f"{experts}.down_proj")
    return form_of_each(experts), one, stacked_form(experts)


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Modules but for choice_bias, which is a tensor. "" and () = there is none."""

    router: str = f"{MLP}.gate"
    forms: tuple[ExpertForm, ...] = usual_forms(f"{MLP}.experts")  # the checkpoint has one of them
    choice_bias: str = ""
    shared_gate_up: tuple[str, ...] = ()  # of what every token goes through
    shared_down: str = ""
    shared_gate: str = ""  # the sigmoid of this is its factor


@dataclass(frozen=True, slots=True)
class ClippedSwiglu:
    """(up + 1) * gate * sigmoid(alpha * gate), gate at most limit, up between -limit and limit."""

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True)
class BesideNames:
    """Where experts take the stream beside the layer's own feed-forward, and the sum of both is normed again."""

    norm: str  # module, before the experts
    post_norm: str  # behind them
    dense_post_norm: str  # behind the feed-forward
    router_scale: str  # tensor [hidden], of the stream normed for the router, times 1 / sqrt(hidden)
    expert_scale: str  # tensor [count], of what each expert gives


@dataclass(frozen=True, slots=True)
class ExpertDetails:
    """Layers with experts. clipped: None = as in the feed-forward. beside: None = they take its place."""

    spec: ExpertSpec
    routing: Routing = Routing()
    names: ExpertNames = ExpertNames()
    has_router_bias: bool = False
    clipped: ClippedSwiglu | None = None
    beside: BesideNames | None = None


@dataclass(frozen=True, slots=True)
class ExpertKeys:
    """Keys of config.json. shared: of the shared feed-forward's size, "" = there is none."""

    count: str = "num_experts"
    ffn: str = "moe_intermediate_size"
    shared: str = ""
    chosen: str = "num_experts_per_tok"


def read_experts(config: ConfigFields, keys: ExpertKeys, layers: tuple[int, ...], shared: int = 0) -> ExpertSpec:
    """CompileError for sizes out of bounds. The count may stand under either of two other names."""
    known = (keys.count, "num_local_experts", "num_experts")
    written = next((name for name in known if config.raw(name) is not None), keys.count)
    count = config.integer(written, 1, 4096)
    if not layers:
        raise CompileError("config.json: no layer has experts")
    return ExpertSpec(
        layers=layers,
        count=count,
        chosen=config.integer(keys.chosen, 1, count),
        ffn=config.integer(keys.ffn, 1, 1 << 20),
        shared=config.integer(keys.shared, 1, 1 << 20) if keys.shared else shared,
    )


def sparse_layers(config: ConfigFields, layers: int) -> tuple[int, ...]:
    """Qwen: each `decoder_sparse_step`-th layer that `mlp_only_layers` does not name."""
    step, listed = config.integer("decoder_sparse_step", 1, 1024, 1), config.raw("mlp_only_layers") or []
    if not isinstance(listed, list) or any(not isinstance(layer, int) for layer in listed):
        raise CompileError("config.json: mlp_only_layers must be a list of layers")
    return tuple(layer for layer in range(layers) if layer not in listed and (layer + 1) % step == 0)
