"""What is read of the wheel qai-hub-models. The published one is read by `tests/real/test_published_speeds.py`."""

import json
import zipfile
from pathlib import Path

import msgspec
import pytest
import yaml

from tools.simulate.published import HUB_CHIPS, HubFigures, HubSpeed
from tools.simulate.wheel import read_wheel, text_of

CODE = "NUM_LAYERS = 28\nHIDDEN_SIZE = 3072\nNUM_KEY_VALUE_HEADS = 8\nNUM_ATTN_HEADS = 24\nMORE = dict()\n"


def metrics(context: int, first: float, rate: float, unit: str = "npu") -> dict[str, object]:
    return {
        "context_length": context,
        "desired_compute_unit": unit,
        "time_to_first_token_range_milliseconds": {"min": first, "max": 9000.0},
        "tokens_per_second": rate,
    }


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    chips = {chip: {"reference_device": f"device of {name}"} for name, chip in HUB_CHIPS.items()}
    perf = {
        "w4a16": {
            "device of x-elite": {
                "genie": {"llm_metrics": [metrics(512, 50.00049, 30.0), metrics(4096, 0.0, 0.0)]},
                "qnn_dlc": {"llm_metrics": [metrics(512, 1.0, 1.0)]},
            },
            "device of nobody": {"genie": {"llm_metrics": [metrics(512, 1.0, 1.0)]}},
        },
        "q4_0": {
            "device of x-elite": {"geniex_llamacpp": {"llm_metrics": [metrics(512, 90.0, 20.0, "cpu")]}},
            "device of x2-elite": {"geniex_llamacpp": {"llm_metrics": [metrics(512, 80.0, 25.0, "cpu")]}},
        },
    }
    text = yaml.safe_dump(
        {"precisions": {kind: {"components": {"m": {"performance_metrics": found}}} for kind, found in perf.items()}}
    )
    codes = {
        "text": CODE,
        "sees": CODE + "VISION_HIDDEN_SIZE = 1280\n",
        "ssd": CODE + "DEFAULT_EXPORT_SEQUENCE_LENGTHS = [32, 128]\n",
        "unknown": "NUM_LAYERS = 2\n",
    }
    path = tmp_path / "qai_hub_models-1.2.3-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("qai_hub_models/devices_and_chipsets.yaml", yaml.safe_dump({"chipsets": chips}))
        for name, code in codes.items():
            archive.writestr(f"qai_hub_models/models/{name}/model.py", code)
            archive.writestr(f"qai_hub_models/models/{name}/perf.yaml", text)
        archive.writestr("qai_hub_models/models/no_code/perf.yaml", text)
    return path


def test_text_models_on_known_devices_with_the_bytes_of_a_token(wheel: Path) -> None:
    assert read_wheel(wheel) == HubFigures(
        "qai-hub-models",
        "1.2.3",
        {"text": 2 * 28 * 8 * 128},
        (
            HubSpeed("text", "x-elite", "npu", "genie", "w4a16", 512, 50.0, 30.0),
            HubSpeed("text", "x-elite", "cpu", "geniex_llamacpp", "q4_0", 512, 90.0, 20.0),
        ),
    )


def test_the_file_has_a_line_for_each_speed(wheel: Path) -> None:
    found = read_wheel(wheel)
    text = text_of(found)
    assert msgspec.json.decode(text, type=HubFigures) == found
    assert len(json.loads(text)["speeds"]) == text.count('["text"') == 2
