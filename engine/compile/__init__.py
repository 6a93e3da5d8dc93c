"""Weights to a bundle. Never imported by the serving processes; they meet it only in `engine/bundle`."""
