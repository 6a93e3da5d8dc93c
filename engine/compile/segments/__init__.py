"""Segmented bundles: a pass as linear graphs over all rows, with one attention run for each sequence between them."""
