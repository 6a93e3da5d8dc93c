"""What an evaluation reads: facts of a bundle, the text in its tokens, logits of whole texts. A text goes through the
graphs, or through the engine of the worker, its scheduler and its caches, as a client's does."""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.bundle.loss_text import form_text
from engine.bundle.manifest import MANIFEST_FILE, GraphKind, Manifest, TextSpec, load_manifest
from engine.bundle.specs import ModelTask
from engine.bundle.variant import ShapeTable, shape_of
from engine.compile.calibration.forward import head_logits, reference_hidden
from engine.compile.plan import longest_sequence
from engine.compile.quantisation.transforms.transformed import family_view
from engine.compile.sources.source import open_source
from engine.compile.sources.task import names_in
from engine.config import EngineConfig
from engine.errors import BundleError, EngineFailure
from engine.files import FileRefused, is_regular, read_text, reading, shown
from engine.models.family import read_network
from engine.request import Request, SamplingParams
from engine.runtime.interface import Logits, PackedBatch, Runtime
from engine.runtime.reading import reading_shapes, text_logits
from engine.text.tokenizer import Tokenizer
from engine.worker.assembly import assemble, open_onnx
from engine.worker.settings import OFF
from engine.worker.step import EngineLoop

Float32 = NDArray[np.float32]


def predicting(name: str, folder: Path) -> Manifest:
    """Of a bundle that predicts next tokens; BundleError for another. name: what the caller calls it."""
    manifest = load_manifest(folder)
    unfit = {
        "is a text encoder": manifest.encoder is not None,
        "makes embeddings": manifest.task is ModelTask.EMBED,
        "denoises blocks": manifest.diffusion is not None,
    }
    for reason in (reason for reason, holds in unfit.items() if holds):
        raise BundleError(f"{name} {reason}: it predicts no next token")
    return manifest


def _longest(manifest: Manifest) -> int:
    if manifest.fused is not None:
        return min(manifest.max_context, manifest.fused.slots)
    kinds = () if manifest.is_segmented else (GraphKind.DECODER, GraphKind.DEFAULT)
    shapes = [shape_of(graph) for graph in manifest.graphs if graph.kind in kinds]
    # Of the fixed shapes with the most rows the one with the most columns; none when the graphs are free.
    widest = max((shape for shape in shapes if shape is not None), default=None)
    return min(manifest.max_context, longest_sequence((widest,))) if widest else manifest.max_context


MOST_TEXT_BYTES = 64 * 1024 * 1024
CHARS_PER_TOKEN = 16  # more than any language has; what of a file is tokenised at first


class TokenVocabulary:
    """How a model reads text. size: ids in its logits. bos: what every window begins with, () where it wants none."""

    def __init__(self, folder: Path, spec: TextSpec, size: int) -> None:
        self.size = size
        self._tokenizer = Tokenizer.load(folder, spec)
        self.bos = self._tokenizer.with_bos(())

    def tokens(self, text: str, most: int) -> tuple[int, ...]:
        """The first `most` tokens of a text, 0 = all. Special tokens that are written out count as such."""
        found = self._tokenizer.encode(text[: most * CHARS_PER_TOKEN], allow_special=True)
        if len(found) <= most or not most:
            found = self._tokenizer.encode(text, allow_special=True)
        return found[:most] if most else found


def evaluated_text(file: Path) -> str:
    """The whole text; BundleError when it cannot be read or is not UTF-8."""
    try:
        return read_text(file, MOST_TEXT_BYTES)
    except FileRefused as error:
        raise BundleError(f"--text {file} cannot be used: {error}") from None
    except OSError as error:
        raise BundleError(f"--text {file} cannot be read: {shown(error)}") from None


DEFINITION = "float32"


class ReadLogits(Protocol):
    """How a model reads a text."""

    def __call__(self, tokens: Sequence[int], *, first: int = 0) -> Float32:
        """Logits of the tokens from `first` on, [tokens, vocab]: those of a long text take gigabytes."""


@dataclass(frozen=True, slots=True)
class EvaluatedModel:
    """An opened model."""

    name: str
    form: str  # how its weights are stored
    device: str  # what computes, for people
    size: int  # bytes on disk
    longest: int  # most tokens of one text
    made_for: int  # the context that its rotary tables are of
    vocabulary: TokenVocabulary
    logits: ReadLogits


def open_bundle(name: str, folder: Path, memory: Path | None, stack: ExitStack) -> EvaluatedModel:
    """A bundle with all its graphs, which stay open until the stack is closed. BundleError when it has no next tokens.
    name: what the caller calls it. memory: where it is remembered that its files were checked."""
    manifest = predicting(name, folder)
    config = EngineConfig(str(folder), cost_cache=str(memory or ""), spin=OFF, forecast=False)
    runtime = open_onnx(folder, manifest, reading_shapes(manifest), config)
    stack.callback(runtime.close)
    return _of_bundle(name, folder, manifest, runtime.device, partial(text_logits, runtime))


def _of_bundle(name: str, folder: Path, manifest: Manifest, device: str, logits: ReadLogits) -> EvaluatedModel:
    return EvaluatedModel(
        name=name,
        form=form_text(manifest),
        device=device,
        size=sum(entry.bytes for entry in manifest.files.values()),
        longest=_longest(manifest),
        made_for=manifest.max_context,
        vocabulary=TokenVocabulary(folder, manifest.text, manifest.model.vocab),
        logits=logits,
    )


def open_reference(name: str, source: Path, context: int, memory: Path | None, stack: ExitStack) -> EvaluatedModel:
    """What models are compared with: a bundle, or a Hugging Face folder or GGUF file in float32. context: most tokens
    that the compared bundle was made for, on which some rotations depend. BundleError, CompileError."""
    with reading(f"--against {name}"):
        is_bundle, is_there = is_regular(source / MANIFEST_FILE), source.exists()
    if is_bundle:
        return open_bundle(name, source, memory, stack)
    if not is_there:
        raise BundleError(f"--against {name} does not exist")
    return _open_checkpoint(name, source, context, stack)


def _open_checkpoint(name: str, source: Path, context: int, stack: ExitStack) -> EvaluatedModel:
    opened = open_source(source)
    network = read_network(opened.config, context)
    checkpoint = stack.enter_context(opened.tensors())
    network = names_in(checkpoint, network)
    checkpoint = family_view(checkpoint, network)
    text_folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hexserve-")))
    text = opened.write_text(text_folder, network.spec.vocab)

    def logits(tokens: Sequence[int], *, first: int = 0) -> Float32:
        with np.errstate(all="ignore"):  # what overflows is refused when the logits are looked at
            return head_logits(checkpoint, network, reference_hidden(checkpoint, network, np.array(tokens))[first:])

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


SERVED = "served"
BEHIND = 0  # a token after the text, so that the logits of its last token are wanted; nobody sees its own


@dataclass(slots=True)
class LogitsTap:
    """Keeps the logits [tokens, vocab] that the steps of one sequence give, by position from `first` on."""

    rows: Float32 = field(default_factory=lambda: np.empty((0, 0), np.float32))
    first: int = 0

    def open_runtime(self, folder: Path, manifest: Manifest, shapes: ShapeTable, config: EngineConfig) -> Runtime:
        """The runtime that would serve, with the tap on what it gives."""
        runtime = open_onnx(folder, manifest, shapes, config)
        run = runtime.run

        def tapped(batch: PackedBatch) -> Logits:
            logits = run(batch)
            places = batch.positions[batch.logit_rows] - self.first
            wanted = (places >= 0) & (places < len(self.rows))
            if wanted.any():  # no text is read while steps are timed
                self.rows[places[wanted]] = logits.decoded()[wanted]
            return logits

        # The instance itself: what else a runtime can do is asked of its type.
        runtime.run = tapped  # type: ignore[method-assign]
        return runtime


def open_served(name: str, folder: Path, cost_cache: str, stack: ExitStack) -> EvaluatedModel:
    """A bundle behind the engine that serves it by default settings, until the stack is closed. BundleError.
    cost_cache: folder of step times, by which the scheduler chooses steps; "" = measured now."""
    manifest, tap = predicting(name, folder), LogitsTap()
    # Threads that spin would be those of all graphs of the process; what is computed is the same.
    assembled = assemble(EngineConfig(str(folder), cost_cache=cost_cache, spin=OFF), tap.open_runtime)
    stack.callback(assembled.runtime.close)
    stack.callback(assembled.loop.close)
    logits = _through(assembled.loop, tap, manifest.model.vocab)
    model = _of_bundle(name, folder, manifest, assembled.ready.device, logits)
    longest = min(model.longest, assembled.ready.max_tokens_per_sequence) - 1
    return replace(model, form=f"{model.form}, {SERVED}", longest=longest)


def _through(loop: EngineLoop, tap: LogitsTap, vocab: int) -> ReadLogits:
    asked = Request("", (), SamplingParams(max_tokens=0, temperature=0.0, prompt_logprobs=0))
    count = 0

    def logits(tokens: Sequence[int], *, first: int = 0) -> Float32:
        nonlocal count
        count += 1
        tap.rows, tap.first = np.full((len(tokens) - first, vocab), np.nan, np.float32), first
        loop.add(replace(asked, id=f"text {count}", prompt_ids=(*tokens, BEHIND)), (), 0, 0.0)
        while loop.has_work:
            if failures := loop.step().failures:
                raise EngineFailure(f"the engine gave a text up: {failures[0].message}")
        return tap.rows

    return logits
