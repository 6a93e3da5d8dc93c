"""What `--quality best` adds to chosen codes: the layers' learned one after the other, then all scales end to end."""

from collections.abc import Collection, Mapping, Sequence

from engine.compile.checkpoint import Checkpoint, Float32
from engine.compile.learned.layer import learn_layer
from engine.compile.learned.model import learn_scales
from engine.compile.learned.plan import LearningPlan
from engine.compile.progress import ProgressSink
from engine.compile.reference_layers import LayerReader
from engine.compile.rounding.codes import BlockCodes
from engine.models.network import Network


class TorchLearner:
    """Learns as `plan` says. with_units: tensors whose scales are multiples of one unit of their output.

    errors: before and after on texts held back, by "layer N" as a share of the squares of what the layer hands on, and
    "KL", the mean over tokens in nats.
    """

    def __init__(
        self,
        network: Network,
        plan: LearningPlan,
        with_units: Collection[str],
        progress: ProgressSink,
    ) -> None:
        self.errors: dict[str, tuple[float, float]] = {}
        self._network = network
        self._plan = plan
        self._with_units = with_units
        self._progress = progress

    def layer(
        self,
        reader: LayerReader,
        layer: int,
        codes: Mapping[str, BlockCodes],
        inputs: Sequence[Float32],
        targets: Sequence[Float32],
    ) -> Mapping[str, BlockCodes]:
        """Of one layer: see `learn_layer`."""
        if not self._plan.layers:
            return {}
        learned = learn_layer(
            self._network,
            reader,
            layer,
            codes,
            inputs,
            targets,
            with_units=self._with_units,
            rounds=self._plan.layers,
            advance=self._progress.advance,
        )
        self.errors[f"layer {layer}"] = learned.before, learned.after
        return learned.codes

    def model(
        self, checkpoint: Checkpoint, codes: Mapping[str, BlockCodes], texts: Sequence[Sequence[int]]
    ) -> Mapping[str, BlockCodes]:
        """Of all: see `learn_scales`."""
        if not self._plan.model:
            return {}
        self._progress.stage("scales end to end", sum(rates.steps for rates in self._plan.model), "steps")
        learned = learn_scales(
            self._network,
            checkpoint,
            codes,
            texts,
            with_units=self._with_units,
            rounds=self._plan.model,
            advance=self._progress.advance,
        )
        self.errors["KL"] = learned.before, learned.after
        return learned.codes
