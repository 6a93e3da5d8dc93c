"""Fixtures every test may use; also makes the shared test modules importable under importlib mode."""

import signal
import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.bundles import bundles
from tests.tiny_checkpoint import build, fixed_bundle, free_bundle, tiny_checkpoint

__all__ = ["build", "bundles", "fixed_bundle", "free_bundle", "tiny_checkpoint"]

# A busy machine must not fail a property: nothing is timed.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# A shell that starts this in the background has it ignore Ctrl-C, and the commands under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
