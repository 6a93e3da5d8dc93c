"""ONNX graphs of every kind: of pools, of segments, fused ones, of encoders, exported blocks; floats or integers."""
