"""What gives logits: a bundle, on what it was compiled for, or a checkpoint by the float definition of its network."""

import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import MANIFEST_FILE, Manifest
from engine.bundle.variant import shape_table
from engine.compile.fused.parity import decoded_logits
from engine.compile.parity import Opener, Session, bundle_logits, widest_shape
from engine.compile.segments.parity import CHUNK_ROWS, segment_logits
from engine.errors import BundleError
from engine.evaluation.facts import bundle_facts
from engine.evaluation.pool_logits import PoolReader, is_chained
from engine.evaluation.vocabulary import TokenVocabulary
from engine.files.opening import is_regular, shown
from engine.graphs.fused.runtime import FusedRuntime
from engine.graphs.onnx_provider import checked_provider
from engine.graphs.onnx_sessions import Provider

Float32 = NDArray[np.float32]
DEFINITION = "float32"


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """An opened model.

    form: how its weights are stored. device: what computes, for people. size: bytes on disk. longest: most tokens of
    one text. made_for: the context that its rotary tables are of. logits: of every token of a text, [tokens, vocab].
    """

    name: str
    form: str
    device: str
    size: int
    longest: int
    made_for: int
    vocabulary: TokenVocabulary
    logits: Callable[[Sequence[int]], Float32]


def open_bundle(name: str, folder: Path, memory: Path | None, stack: ExitStack) -> EvaluatedModel:
    """A bundle with all its graphs, which stay open until the stack is closed. BundleError when it has no next tokens.

    name: what the caller calls it. memory: where it is remembered that its files were checked.
    """
    facts = bundle_facts(name, folder)
    manifest = facts.manifest
    provider = checked_provider(folder, manifest, 0, memory)
    return EvaluatedModel(
        name=name,
        form=facts.form,
        device=provider.device,
        size=facts.size,
        longest=facts.longest,
        made_for=manifest.max_context,
        vocabulary=TokenVocabulary(folder, manifest.text, manifest.model.vocab),
        logits=_logits(folder, manifest, provider, stack),
    )


def open_reference(name: str, source: Path, context: int, memory: Path | None, stack: ExitStack) -> EvaluatedModel:
    """What models are compared with: a bundle, or a Hugging Face folder or GGUF file in float32.

    context: most tokens that the compared bundle was made for, on which some rotary embeddings depend. BundleError or
    CompileError when it cannot be used.
    """
    try:
        is_bundle, is_there = is_regular(source / MANIFEST_FILE), source.exists()
    except OSError as error:
        raise BundleError(f"--against {name} cannot be read: {shown(error)}") from error
    if is_bundle:
        return open_bundle(name, source, memory, stack)
    if not is_there:
        raise BundleError(f"--against {name} does not exist")
    if importlib.util.find_spec("safetensors") is None or importlib.util.find_spec("ml_dtypes") is None:
        raise BundleError("--against a checkpoint needs more packages: pip install 'hexserve[compile]'")
    return _open_checkpoint(name, source, context, stack)


def _open_checkpoint(name: str, source: Path, context: int, stack: ExitStack) -> EvaluatedModel:
    # A bundle against a bundle needs none of the compiler's packages.
    from engine.compile.reference import reference_logits  # noqa: PLC0415
    from engine.compile.source import open_source  # noqa: PLC0415
    from engine.compile.task import names_in  # noqa: PLC0415
    from engine.models.family import read_network  # noqa: PLC0415

    opened = open_source(source)
    network = read_network(opened.config, context)
    checkpoint = stack.enter_context(opened.tensors())
    network = names_in(checkpoint, network)
    text_folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hexserve-")))
    text = opened.write_text(text_folder, network.spec.vocab)

    def logits(tokens: Sequence[int]) -> Float32:
        with np.errstate(all="ignore"):  # what overflows is refused when the logits are looked at
            return reference_logits(checkpoint, network, np.array(tokens))

    return EvaluatedModel(
        name=name,
        form=DEFINITION,
        device="CPU",
        size=checkpoint.total_bytes(),
        longest=network.compiled_context,
        made_for=network.compiled_context,
        vocabulary=TokenVocabulary(text_folder, text, network.spec.vocab),
        logits=logits,
    )


def _logits(
    folder: Path, manifest: Manifest, provider: Provider, stack: ExitStack
) -> Callable[[Sequence[int]], Float32]:
    if manifest.fused is not None:
        shapes = shape_table(manifest, max(manifest.fused.pd_total_len))
        runtime = FusedRuntime(folder, manifest, shapes, provider)
        stack.callback(runtime.close)
        return lambda tokens: decoded_logits(runtime, manifest, tokens)
    opener = _remembering(provider, stack)
    if manifest.is_segmented:
        return lambda tokens: segment_logits(folder, manifest, [tokens], CHUNK_ROWS, opener=opener)
    shape = widest_shape(manifest)
    if shape is not None and shape.past and not is_chained(manifest, shape):
        reader = PoolReader(folder, manifest, shape, provider)
        stack.callback(reader.close)
        return reader.logits
    return lambda tokens: bundle_logits(folder, manifest, [tokens], opener)


def _remembering(provider: Provider, stack: ExitStack) -> Opener:
    """Opens each graph once, however many windows are read."""
    opened: dict[Path, Session] = {}
    stack.callback(opened.clear)

    def opener(path: Path) -> Session:
        if path not in opened:
            opened[path] = provider.open(path)
        return opened[path]

    return opener
