"""Compiling text encoders: weights, one graph for each number of rows, the check against the checkpoint."""
