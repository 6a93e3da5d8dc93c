"""Fixtures of Genie folders, for its long tests."""

from tests.genie.conftest import checkpoint

__all__ = ["checkpoint"]
