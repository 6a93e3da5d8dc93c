"""What whisper.cpp hears: SAMPLES, a .npy file of 16,000 a second, by MODEL, a file of its own; a JSON string."""

import json
import os

import numpy as np
from pywhispercpp.model import Model

if __name__ == "__main__":
    model = Model(os.environ["MODEL"], n_threads=2, print_progress=False, redirect_whispercpp_logs_to=None)
    found = model.transcribe(np.load(os.environ["SAMPLES"]), language="en", temperature=0.0)
    print()
    print(json.dumps(" ".join(segment.text.strip() for segment in found)))
