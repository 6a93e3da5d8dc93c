"""Quantised bundles and llama.cpp's files of the same checkpoints, scored on the same held-out text, against bars."""
