"""faster-whisper in an environment of its own: a question for each line of stdin, an answer for each.

Called with a folder, threads, and recordings at once. A question is a list of paths, an answer {"texts", "seconds"}.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from faster_whisper import WhisperModel  # type: ignore[import-not-found]  # only its own environment has it


def main(folder: str, threads: str, at_once: str) -> None:
    """Answer until the end of input."""
    model = WhisperModel(folder, device="cpu", compute_type="int8", cpu_threads=int(threads), num_workers=int(at_once))

    def text(path: str) -> str:
        return "".join(segment.text for segment in model.transcribe(path, language="en", beam_size=1)[0])

    with ThreadPoolExecutor(int(at_once)) as pool:
        for line in sys.stdin:
            start = time.perf_counter()
            texts = list(pool.map(text, json.loads(line)))
            print(json.dumps({"texts": texts, "seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
