"""What faster-whisper hears in SOUNDS, a JSON list of paths, by MODEL in int8, greedily; a JSON list of strings."""

import json
import os

from faster_whisper import WhisperModel

if __name__ == "__main__":
    model = WhisperModel(os.environ["MODEL"], device="cpu", compute_type="int8", cpu_threads=2)
    paths = json.loads(os.environ["SOUNDS"])
    heard = [model.transcribe(path, language="en", beam_size=1)[0] for path in paths]
    print(json.dumps(["".join(segment.text for segment in segments) for segments in heard]))
