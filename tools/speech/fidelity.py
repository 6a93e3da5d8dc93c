"""What a compressed Whisper loses: its divergence from its own floats over words that people said."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.bundle.manifest import Manifest, load_manifest
from engine.bundle.specs import SpeechSpec
from engine.bundle.speech import speech_of
from engine.compile.check.parity import Interval, all_divergences, draw, interval
from engine.compile.sources.text_files import load_tokenizer
from engine.config import EngineConfig
from engine.request import Pooling, Request, SamplingParams
from engine.speech.log_mel import HOP, SAMPLE_RATE, log_mel
from engine.worker.assembly import assemble
from engine.worker.step import EngineLoop
from tools.speech.recordings import ReadAloud

Float32 = NDArray[np.float32]


def divergence_of(bundle: Path, floats: Path, said: Sequence[ReadAloud], threads: int = 0) -> Interval:
    """The mean KL(floats || bundle) in nats, and where it lies with a probability of 95 %.

    Of each token of what is said and of its end, behind the true ones; of recordings that fill one window at most.
    """
    manifest = load_manifest(floats)
    short = [each for each in said if each.seconds * SAMPLE_RATE <= speech_of(manifest).frames * HOP]
    lengths, found = list[int](), list[NDArray[np.float64]]()
    sides = [_logits(folder, manifest, short, threads) for folder in (floats, bundle)]
    for reference, measured in zip(*sides, strict=True):
        found.append(all_divergences(reference, measured))
        lengths.append(len(reference))
    whole = np.concatenate(found)
    return interval(lambda places: float(whole[places].mean()), len(whole), draw(lengths, seed=1))


def _logits(folder: Path, manifest: Manifest, said: Sequence[ReadAloud], threads: int) -> Iterator[Float32]:
    """Of each recording, [its tokens and the end, vocabulary]."""
    made, tokenizer = assemble(EngineConfig(str(folder), max_running=1, threads=threads)), load_tokenizer(folder)
    try:
        for each in said:
            ids = tokenizer.encode(f" {each.text}", add_special_tokens=False).ids
            yield np.stack([*_behind_each(made.loop, speech_of(manifest), each, ids)])
    finally:
        made.loop.close()
        made.runtime.close()


def _behind_each(loop: EngineLoop, spec: SpeechSpec, each: ReadAloud, ids: Sequence[int]) -> Iterator[Float32]:
    """Behind none of the tokens, the first, the first two and so on."""
    audio = log_mel(each.samples, spec.mels, spec.frames).tobytes()
    opening = (spec.start, spec.languages["en"], spec.transcribe, spec.no_timestamps)
    for count in range(len(ids) + 1):
        prompt = (*opening, *ids[:count])
        loop.add(Request(str(count), prompt, SamplingParams(0), audio=audio, pooling=Pooling()), (), 0, 0.0)
        while loop.has_work:
            for event in loop.step().events:
                yield np.frombuffer(event.vector, "<f4")
