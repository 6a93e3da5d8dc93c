"""Genie's on-disk formats, both ways: foreign folders read into a manifest, own NPU bundles described for Genie."""
