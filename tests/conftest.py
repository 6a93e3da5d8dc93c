"""Fixtures every test may use, the tiers, and what a run says of itself while it goes on."""

import gc
import os
import signal
import sys
from importlib import import_module
from pathlib import Path

# Tests run beside each other; numpy and torch read this when they are loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent.parent))  # importlib mode adds no folder

from tests.bundles import bundles
from tests.hybrid import hybrid, int4_hybrid
from tests.progress import Progress
from tests.tiny_checkpoint import (
    build,
    fixed_bundle,
    free_bundle,
    int8_cache_bundle,
    segmented_bundle,
    short_text,
    tiny_checkpoint,
)

__all__ = [
    "build",
    "bundles",
    "fixed_bundle",
    "free_bundle",
    "hybrid",
    "int4_hybrid",
    "int8_cache_bundle",
    "segmented_bundle",
    "short_text",
    "tiny_checkpoint",
]

# What takes longest begins first: a long file that begins last would keep one worker busy while the others have
# nothing left. Files in this order, then the folders of the tiers.
FIRST = (
    *("real/test_served_fidelity.py", "real/test_npu_graphs.py", "real/test_float_reference.py", "real/test_run.py"),
    *("long/deploy/", "long/genie/", "long/e2e/", "long/clients/", "long/npu/", "long/fuzz/", "long/tools/"),
    *("e2e/", "genie/", "real/", "test_", "clients/", "deploy/", "tools/"),
)

# In a fresh clone nothing is compiled to bytecode yet: one worker begins with what the other comes to last.
if os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
    for name in ("torch", "openai"):
        import_module(name)

# A busy machine must not fail a property: nothing is timed.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# A shell that starts this in the background has it ignore Ctrl-C, nohup has it ignore SIGHUP, and the commands under
# test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
if sys.platform != "win32":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


# Collecting makes millions of objects that live to the end; looking through them again and again doubles its time.
gc.disable()


def pytest_collection_finish() -> None:
    """From here on garbage is collected, without a look at what was there before."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tiers by their folders; what takes longest comes first."""
    folder = Path(__file__).parent
    places = {item: item.path.relative_to(folder).as_posix() for item in items}
    for item in items:
        for tier in ("long", "real"):
            if places[item].startswith(f"{tier}/"):
                item.add_marker(tier)
    ranks = {item: [place.startswith(first) for first in (*FIRST, "")].index(True) for item, place in places.items()}
    items.sort(key=ranks.__getitem__)


def pytest_configure(config: pytest.Config) -> None:
    """Show progress by folder in quiet runs; -v and --collect-only keep pytest's own."""
    is_worker = hasattr(config, "workerinput")
    if config.get_verbosity() < 0 and not config.option.collectonly and not is_worker:
        config.pluginmanager.register(Progress(config), "hexserve-progress")
