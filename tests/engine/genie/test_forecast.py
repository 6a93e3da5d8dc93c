"""The settings and the prefix file of a dialog that speculates by itself, and what is refused by name."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from engine.bundle.model_spec import ModelSpec, RopeSpec
from engine.bundle.specs import ForecastSpec
from engine.bundle.weight_files import read_forecast_prefix
from engine.errors import BundleError
from engine.genie.config import read_config
from engine.genie.extras import read_forecast

MODEL = ModelSpec("none", 3, 8, 2, 2, 4, 8, 384, RopeSpec("default", 1e4, 4, (1.0, 0.01)))
SETTINGS = {"forecast-prefix": 16, "forecast-prefix-name": "prefix", "branches": [3, 2], "forecast-token-count": 4}
NUMBERS = 3 * 2 * 4 * 16


def write(folder: Path, settings: dict[str, object], head: tuple[int, ...] = (6, 0xC0DE, 8, 2, 4, 16)) -> None:
    dialog: dict[str, object] = {"type": "ssd-q1", "ssd-q1": SETTINGS | settings, "context": {"n-vocab": 380}}
    dialog["engine"] = {"model": {"binary": {"ctx-bins": ["a.bin"]}}}
    (folder / "genie_config.json").write_text(json.dumps({"dialog": dialog}))
    codes = np.arange(2 * NUMBERS) % 251
    (folder / "prefix").mkdir()
    content = struct.pack("<IIBxHHH", *head) + codes.astype(np.uint8).tobytes()
    (folder / "prefix" / "kv-cache.primary.qnn-htp").write_bytes(content)


def read(folder: Path) -> tuple[ForecastSpec, Path] | None:
    return read_forecast(folder, read_config(folder), MODEL, "uint8")


def test_what_the_dialog_says_and_the_file_holds(tmp_path: Path) -> None:
    write(tmp_path, {})
    source = read(tmp_path)
    assert source is not None
    assert source[0] == ForecastSpec("forecast_prefix.bin", 16, 380, (3, 2))
    spec = ForecastSpec("prefix/kv-cache.primary.qnn-htp", 16, 0, (1,))
    prefix = read_forecast_prefix(tmp_path, spec, MODEL, "uint8")
    assert (prefix.keys.shape, prefix.values.shape, prefix.columns) == ((3, 2, 1, 4, 16), (3, 2, 1, 16, 4), 16)
    assert prefix.keys[1, 1, 0, 2, 5] == (((1 * 2 + 1) * 4 + 2) * 16 + 5) % 251
    assert prefix.values[2, 0, 0, 7, 3] == (NUMBERS + ((2 * 2) * 16 + 7) * 4 + 3) % 251


def test_without_branches_there_is_a_level_of_three(tmp_path: Path) -> None:
    write(tmp_path, {"branches": None})
    source = read(tmp_path)
    assert source is not None and source[0].branches == (3,)


@pytest.mark.parametrize("settings", [{"forecast-prefix-name": None}, {"forecast-prefix-name": "elsewhere"}])
def test_without_the_file_it_is_an_ordinary_folder(tmp_path: Path, settings: dict[str, object]) -> None:
    write(tmp_path, settings)
    assert read(tmp_path) is None


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"branches": [3, 0]}, r"ssd-q1.branches must be up to 8 numbers from 1 to 16, they are \[3, 0\]"),
        ({"branches": [17]}, r"they are \[17\]"),
        ({"branches": [1] * 9}, "must be up to 8 numbers"),
        ({"branches": "3"}, "must be an integer or a list of them"),
        ({"forecast-prefix": 0}, "ssd-q1.forecast-prefix must be an integer from 1 to 1024, it is 0"),
        ({"forecast-prefix": 32}, "has 784 bytes; 32 KV slots of the model's caches take 1552"),
        ({"forecast-prefix": 8}, "larger than"),
        ({"forecast-prefix-name": "../prefix"}, "ssd-q1.forecast-prefix-name: the name '../prefix/"),
    ],
)
def test_settings_that_are_wrong_are_named(tmp_path: Path, settings: dict[str, object], told: str) -> None:
    write(tmp_path, settings)
    with pytest.raises(BundleError, match=told):
        read(tmp_path)


@pytest.mark.parametrize(
    ("head", "told"),
    [
        ((6, 0xC0DF, 8, 2, 4, 16), "says 0xc0df as its magic, it must be 0xc0de"),
        ((4, 0xC0DE, 8, 2, 4, 16), "says 0x4 as its tensors, it must be 0x6"),
        ((6, 0xC0DE, 8, 4, 2, 16), "says 0x4 as its heads, it must be 0x2"),
        ((6, 0xC0DE, 8, 2, 8, 8), "says 0x8 as its head size, it must be 0x4"),
        ((6, 0xC0DE, 8, 2, 4, 8), "says 0x8 as its columns, it must be 0x10"),
    ],
)
def test_a_file_of_another_model_is_named(tmp_path: Path, head: tuple[int, ...], told: str) -> None:
    write(tmp_path, {}, head)
    with pytest.raises(BundleError, match=told):
        read(tmp_path)
