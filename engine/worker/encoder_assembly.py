"""Building the engine of an encoder's bundle: runtime, what reads its rows, loop."""

import time
from collections.abc import Callable
from pathlib import Path

from engine.bundle.manifest import Manifest
from engine.config import EngineConfig
from engine.encoders.batch import EncoderText, pack_texts
from engine.encoders.pooling import pooled
from engine.encoders.score_head import read_score_head
from engine.errors import BundleError
from engine.graphs.onnx_encoder import EncoderRuntime
from engine.graphs.onnx_sessions import Provider
from engine.messages import Ready
from engine.worker.encoder_loop import Encoder, EncoderLoop, ReadRows
from engine.worker.startup import Stages
from engine.worker.work_loop import Assembled

FOREIGN = ("draft", "lora", "paced", "window", "kv_file")  # settings of models that generate


def assemble_encoder(
    folder: Path, manifest: Manifest, config: EngineConfig, open_provider: Callable[[], Provider], stages: Stages
) -> Assembled:
    """Put the parts together. BundleError when the bundle cannot be served as configured."""
    for name in FOREIGN:
        if getattr(config, name):
            raise BundleError(f"{name} is for models that generate; {manifest.name} turns texts into vectors or scores")
    with stages.stage("graphs"):
        runtime = EncoderRuntime(folder, manifest, open_provider())
        read_rows = rows_reader(folder, manifest)
    with stages.stage("pass times"):
        expected_ms = {rows: _pass_ms(runtime, rows, manifest.max_context) for rows in runtime.rows}
    pair = manifest.rerank
    middle_ids = pair.middle_ids if pair is not None and pair.has_types else ()
    longest, alone = manifest.max_context, config.deterministic  # sums depend on where in a pass a text lies
    loop = EncoderLoop(runtime, read_rows, longest, time.monotonic, expected_ms, middle_ids, alone)
    stages.finish()
    ready = Ready(
        bundle=manifest.name,
        device=runtime.device,
        max_tokens_per_sequence=manifest.max_context,
        variants=tuple(f"{rows} rows" for rows in runtime.rows),
        max_input_tokens=manifest.max_context,
    )
    return Assembled(loop, runtime, ready)


def rows_reader(folder: Path, manifest: Manifest) -> ReadRows:
    """How a text's hidden states become its vector, or its scores. BundleError when a file cannot be read."""
    head = read_score_head(folder, manifest)
    if head is not None:
        return head
    assert manifest.pooling is not None, "the bundle was checked"
    kind = manifest.pooling.kind
    return lambda hidden: pooled(hidden, kind)


def _pass_ms(runtime: Encoder, rows: int, longest: int) -> float:
    """Of a pass whose rows are all used, after one that is not timed: the first is slower."""
    lengths = [*[longest] * (rows // longest), *filter(None, [rows % longest])]
    batch = pack_texts([EncoderText((0,) * length) for length in lengths], rows)
    runtime.run(batch)
    began = time.perf_counter()
    runtime.run(batch)
    return 1000.0 * (time.perf_counter() - began)
