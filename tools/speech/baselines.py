"""A baseline in an environment of its own: a question for each line of stdin, an answer for each.

Called with its name, a model, threads, and recordings at once. A question is a list of paths with their languages, an
answer {"texts", "seconds"}. All read greedily, and rise in temperature as Whisper's authors say.
"""

import json
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def faster_whisper(model: str, threads: int, at_once: int) -> Callable[[tuple[str, str]], str]:
    """Of a folder of CTranslate2 and a path of sound, in int8."""
    from faster_whisper import WhisperModel  # type: ignore[import-not-found]  # noqa: PLC0415

    made = WhisperModel(model, device="cpu", compute_type="int8", cpu_threads=threads, num_workers=at_once)
    return lambda said: "".join(segment.text for segment in made.transcribe(said[0], language=said[1], beam_size=1)[0])


def whisper_cpp(model: str, threads: int, _: int) -> Callable[[tuple[str, str]], str]:
    """Of a GGML file and a path of samples, 16,000 a second, float32 (.npy)."""
    import numpy as np  # noqa: PLC0415
    from pywhispercpp.model import Model  # type: ignore[import-not-found]  # noqa: PLC0415

    made = Model(model, n_threads=threads, print_progress=False, redirect_whispercpp_logs_to=None)
    return lambda said: "".join(
        segment.text for segment in made.transcribe(np.load(said[0]), language=said[1], temperature=0.0)
    )


BASELINES = {"faster-whisper": faster_whisper, "whisper.cpp": whisper_cpp}


def main(name: str, model: str, threads: str, at_once: str) -> None:
    """Answer until the end of input."""
    text = BASELINES[name](model, int(threads), int(at_once))
    with ThreadPoolExecutor(int(at_once)) as pool:
        for line in sys.stdin:
            start = time.perf_counter()
            texts = list(pool.map(text, json.loads(line)))
            print("\n" + json.dumps({"texts": texts, "seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
