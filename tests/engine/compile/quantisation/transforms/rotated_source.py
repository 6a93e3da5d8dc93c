"""Sources whose checkpoints are transformed: everything that reads a checkpoint reads them alike."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from engine.bundle.manifest import TextSpec
from engine.compile.quantisation.transforms.rotation import Edits, rotation_edits
from engine.compile.quantisation.transforms.transformed import TransformedCheckpoint
from engine.compile.sources.checkpoint import Checkpoint
from engine.compile.sources.source import Source
from engine.compile.sources.task import names_in
from engine.models.network import Network

_TIED = "tie_word_embeddings"


class TransformedSource:
    """As `inner`, but its tensors are changed as `edits` says of the network under the checkpoint's own names."""

    def __init__(
        self, inner: Source, network: Network, edits: Callable[[Network], Edits], config: dict[str, object]
    ) -> None:
        self.config = config
        self.remark = inner.remark
        self._inner = inner
        self._network = network
        self._edits = edits

    def end_ids(self) -> tuple[int, ...]:
        """Those of the inner source."""
        return self._inner.end_ids()

    def float_bytes(self) -> int:
        """Those of the inner source: a change of floats leaves floats."""
        return self._inner.float_bytes()

    def tensors(self) -> AbstractContextManager[Checkpoint]:
        """The changed tensors, while the context lasts."""
        return self._opened()

    def processor(self) -> dict[str, object]:
        """That of the inner source."""
        return self._inner.processor()

    def write_text(self, folder: Path, vocab: int) -> TextSpec:
        """The inner source's text."""
        return self._inner.write_text(folder, vocab)

    @contextmanager
    def _opened(self) -> Iterator[Checkpoint]:
        with self._inner.tensors() as checkpoint:
            edits = self._edits(names_in(checkpoint, self._network))
            yield TransformedCheckpoint(checkpoint, edits, self._network.details.norm_offset)


def rotated(source: Source, network: Network, seed: int) -> Source:
    """The source with rotations folded into its weights; its logits stay what they are.

    The head of one that is tied gets weights of its own, and the config says so: read the network from it anew.
    Adapters made for the checkpoint do not fit it any more.
    """
    return TransformedSource(source, network, lambda named: rotation_edits(named, seed), _untied(source.config))


def _untied(config: Mapping[str, object]) -> dict[str, object]:
    """The config and those nested in it, with a head of its own."""
    changed = {key: _untied(value) if isinstance(value, Mapping) else value for key, value in config.items()}
    return changed | ({_TIED: False} if _TIED in config else {})
