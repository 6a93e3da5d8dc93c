"""From a checkpoint's floats to stored weights: methods, rounding, the choice of codes."""
