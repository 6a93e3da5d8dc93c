"""Fixtures for fetching a bundle without a network."""

from tests.engine.sources.ai_hub.stand_ins import catalogue, store

__all__ = ["catalogue", "store"]
