"""Compiling for Qualcomm's NPU: half-precision graphs, context binaries, wrappers."""
