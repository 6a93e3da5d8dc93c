"""Fixtures every test may use; also makes the shared test modules importable under importlib mode."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.bundles import bundles

__all__ = ["bundles"]
