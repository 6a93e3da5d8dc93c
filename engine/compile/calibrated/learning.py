"""What `--quality best` adds on this machine; torch, an extra, is loaded when learning begins."""

from dataclasses import replace
from typing import TYPE_CHECKING

from engine.bundle.quality_spec import LearningError
from engine.bundle.task import ModelTask
from engine.compile.arguments import CompileArguments, QualityLevel
from engine.compile.calibrated.choose import Forms
from engine.compile.calibrated.estimate import BASE, Estimate
from engine.compile.calibrated.matrices import groups_of, head_tensor
from engine.compile.learned.plan import NOTHING, LearningPlan, planned
from engine.compile.progress import ProgressSink
from engine.isolation.memory import usable_memory
from engine.models.network import Network

if TYPE_CHECKING:
    from engine.compile.learned.learner import TorchLearner


def plan_of(arguments: CompileArguments, network: Network, tokens: int) -> LearningPlan:
    """What is learned; nothing unless the best quality is wanted."""
    if arguments.quality is not QualityLevel.BEST:
        return NOTHING
    return planned(network, arguments.task is not ModelTask.EMBED, tokens, usable_memory())


def with_learning(estimate: Estimate, plan: LearningPlan) -> Estimate:
    """Of both together: layers are learned beside what choosing codes holds, the whole model after that."""
    memory = max(estimate.memory + plan.beside, BASE + plan.memory if plan.methods else 0)
    return replace(estimate, seconds=estimate.seconds + plan.seconds, memory=memory)


def learner_of(network: Network, forms: Forms, plan: LearningPlan, progress: ProgressSink) -> "TorchLearner | None":
    """What learns as planned, None where nothing is to be learned."""
    if not plan.methods:
        return None
    from engine.compile.learned.learner import TorchLearner  # noqa: PLC0415

    with_units: set[str] = set()
    if forms.layers.has_multiples:
        groups = (group for layer in range(network.spec.layers) for group in groups_of(network, layer))
        with_units.update(name for group in groups for name in group.tensors)
    if forms.head is not None and forms.head.has_multiples:
        with_units.add(head_tensor(network))
    return TorchLearner(network, plan, with_units, progress)


def learning_errors(learner: "TorchLearner | None") -> dict[str, LearningError]:
    """As the manifest tells them."""
    found = {} if learner is None else learner.errors
    return {name: LearningError(*(float(f"{error:.3e}") for error in errors)) for name, errors in found.items()}
