"""Fixtures every test may use, which tests are long, and what a run says of itself while it goes on."""

import os
import signal
import sys
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

# Folders and files of which every test is long: clients in environments of their own, Qualcomm's emulator, Genie, whole
# servers and commands that are started again for each test.
LONG = (
    "clients/test_clients.py",
    "clients/test_lm_eval.py",
    "clients/test_page_pictures.py",
    "genie/test_oracle.py",
    "genie/test_server.py",
    "npu/",
    "engine/compile/npu/test_binaries.py",
    "engine/compile/qdq/test_emulator.py",
    "e2e/test_large_checkpoint.py",
    "e2e/test_locust.py",
    "e2e/test_server_process.py",
    "e2e/test_shutdown.py",
    "e2e/test_guarded.py",
    "e2e/test_hostile_template.py",
    "e2e/test_structured_clients.py",
    "engine/test_processes.py",
)

# A busy machine must not fail a property: nothing is timed.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

# A shell that starts this in the background has it ignore Ctrl-C, nohup has it ignore SIGHUP, and the commands under
# test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
if sys.platform != "win32":
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is long by its place; a single long test in a quick file is marked there."""
    folder = Path(__file__).parent
    for item in items:
        if item.path.relative_to(folder).as_posix().startswith(LONG):
            item.add_marker(pytest.mark.long)


def pytest_configure(config: pytest.Config) -> None:
    """Show progress by folder in quiet runs; -v and --collect-only keep pytest's own."""
    is_worker = hasattr(config, "workerinput")
    if config.get_verbosity() < 0 and not config.option.collectonly and not is_worker:
        config.pluginmanager.register(Progress(config), "hexserve-progress")
