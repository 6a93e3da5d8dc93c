"""Fixtures of the hub, for its long tests."""

from tests.engine.sources.conftest import hub

__all__ = ["hub"]
