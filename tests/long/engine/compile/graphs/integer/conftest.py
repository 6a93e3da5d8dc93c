"""Fixtures of integer graphs, for its long tests."""

from tests.engine.compile.graphs.integer.conftest import integer_bundle

__all__ = ["integer_bundle"]
