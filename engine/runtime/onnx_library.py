"""onnxruntime, imported here and nowhere else: its telemetry is switched off before it loads.
Its wheels write a device id under the home folder and send usage events unless ORT_DISABLE_TELEMETRY is set by then."""

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import onnxruntime as ort

__all__ = ["ort"]
