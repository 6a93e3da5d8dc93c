"""deploy/ray_serve.py on a local Ray cluster of three nodes; Ray has an environment of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.clients.environments import python_environment

ROOT = Path(__file__).parents[3]
RUN_S = 1_500  # three replicas start twice; 540 s were too few on a busy machine


def test_prefixes_are_found_again_and_a_lost_replica_loses_no_stream() -> None:
    python = python_environment("ray_serve")
    command = [str(python), "-m", "tools.proofs.ray_proof", "--python", sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=RUN_S
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    found = json.loads(done.stdout.rstrip().rpartition("\n")[2])
    print(found)
    assert found["nodes"] == 3 and found["streams"] == 24
    assert found["killed_processes"] > 1 and found["lost_or_changed"] == 0
    assert found["cached_prefix_aware"] > 0.8 > found["cached_random"] + 0.1
