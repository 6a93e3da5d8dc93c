"""Integer graphs for the NPU (w8a16, w4a16): calibration, encodings, quantise/dequantise pairs."""
