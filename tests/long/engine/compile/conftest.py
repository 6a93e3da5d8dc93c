"""Fixtures of the compiler, for its long tests."""

from tests.engine.compile.conftest import make_oracle, prompt

__all__ = ["make_oracle", "prompt"]
