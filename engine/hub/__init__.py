"""Fetching ready bundles from Qualcomm AI Hub."""
