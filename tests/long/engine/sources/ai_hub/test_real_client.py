"""Qualcomm's own client, in an environment of its own, finds bundles and speeds in a store on this machine."""

import json
import os
import subprocess
from pathlib import Path

from tests.clients.environments import python_with

REQUIREMENT = "qai-hub-models-cli==0.65.0\nmsgspec>=0.19\nnumpy>=1.26"
ROOT = Path(__file__).resolve().parents[5]
X, X2 = "qualcomm-snapdragon-x-elite", "qualcomm-snapdragon-x2-elite"


def asked(questions: list[list[str]], home: Path) -> list[object]:
    """The answers of `real_client.py`."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(home), "HOME": str(home), "PYTHONPATH": str(ROOT)}
    command = [str(python_with("qai_hub_models_cli", REQUIREMENT)), "-m", "tests.engine.sources.ai_hub.real_client"]
    done = subprocess.run(
        [*command, json.dumps(questions)], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[object] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_bundles_and_speeds(tmp_path: Path) -> None:
    found = asked(
        [
            ["address", "both", "", ""],
            ["address", "both", "w4", ""],
            ["address", "older", "", ""],
            ["address", "mixed", "", ""],
            ["address", "mixed", "", X2],
            ["address", "whisper", "", ""],
            ["address", "older", "w4", ""],
            ["address", "none", "", ""],
            ["address", "nobody", "", ""],
            ["address", "both", "", "qualcomm-snapdragon-x9"],
            ["speeds", "both", "", ""],
            ["speeds", "both", "", X2],
            ["speeds", "nobody", "", ""],
        ],
        tmp_path,
    )
    assert found[:6] == [
        f"/both-RUNTIME_GENIEX_QAIRT-PRECISION_W4A16-{X}.zip",
        f"/both-RUNTIME_GENIEX_QAIRT-PRECISION_W4-{X}.zip",
        f"/older-RUNTIME_GENIE-PRECISION_W4A16-{X}.zip",
        f"/mixed-RUNTIME_GENIEX_QAIRT-PRECISION_W4-{X}.zip",
        f"/mixed-RUNTIME_GENIE-PRECISION_W4A16-{X2}.zip",
        f"/whisper-RUNTIME_VOICE_AI-PRECISION_FLOAT-{X}.zip",
    ]
    failures = [answer[1] for answer in found[6:10] if isinstance(answer, list)]
    runtimes = "geniex_qairt or genie or voice_ai"
    assert failures[0].startswith(f"older has no bundle for {X} in w4, for {runtimes}: No asset found")
    assert failures[1].startswith(f"none has no bundle for {X} in w4a16 or w4 or float, for {runtimes}: ")
    assert "No model exists with the name or ID: 'nobody'" in failures[2]
    assert failures[3].startswith("both has no bundle for qualcomm-snapdragon-x9")
    assert found[10:12] == [[["geniex_qairt", 512, 80.0, 30.0], ["geniex_qairt", 4096, 100.0, 20.0]], []]
    assert isinstance(found[12], list) and "AI Hub has published no speeds of nobody" in found[12][1]
