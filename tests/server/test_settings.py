"""Settings: which source wins and what is refused."""

import codecs
import dataclasses
import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig, Trait
from engine.runtime.qnn.environment import OPTIONS_VARIABLE, as_variables
from server.settings import SINKS, Settings, SettingsError, load_settings, options


def test_the_defaults() -> None:
    settings = load_settings({}, {}, None)
    assert settings == Settings(EngineConfig("demo"))
    assert (settings.host, settings.port, settings.engine.bundle) == ("127.0.0.1", 8000, "demo")


def test_flags_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "hexserve.toml"
    file.write_text('port = 1\nthreads = 1\nhost = "file"\nmax_gap_ms = 5\n')
    environment = {"HEXSERVE_PORT": "2", "HEXSERVE_THREADS": "2", "HEXSERVE_PREFIX_CACHE": "false", "PATH": "x"}
    settings = load_settings({"port": 3, "threads": None}, environment, file)
    assert (settings.port, settings.engine.threads, settings.host) == (3, 2, "file")
    assert (settings.engine.max_gap_ms, settings.engine.prefix_cache) == (5.0, False)


def test_the_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "hexserve.toml"
    file.write_text("port = 99")
    assert load_settings({}, {"HEXSERVE_CONFIG": str(file)}, None).port == 99


@pytest.mark.parametrize(
    ("environment", "toml", "expected"),
    [
        ({"HEXSERVE_PROT": "1"}, "", r"HEXSERVE_PROT.*nearest one is HEXSERVE_PORT"),
        ({}, "max_quued = 1", r"'max_quued'.*nearest one is max_queued"),
        ({}, "[engine]\nthreads = 1", r"unknown setting 'engine'"),
        (
            {"HEXSERVE_PORT": "high"},
            "",
            r"HEXSERVE_PORT must be a valid integer, unable to parse .*, not 'high'$",
        ),
        ({"HEXSERVE_PORT": "70000"}, "", r"^HEXSERVE_PORT must be less than or equal to 65535, not '70000'$"),
        ({"HEXSERVE_KV_SLOTS": "1000000000"}, "", r"less than or equal to 16777216, not"),
        ({"HEXSERVE_DRAIN_S": "nan"}, "", r"finite"),
        ({"HEXSERVE_DRAIN_S": "inf"}, "", r"finite"),
        ({"HEXSERVE_DETERMINISTIC": "maybe"}, "", r"must be a valid boolean"),
        ({"HEXSERVE_LOG_LEVEL": "loud"}, "", r"must be 'debug', 'info', 'warning' or 'error', not 'loud'$"),
        ({}, 'port = "8000"', r"'port' must be a valid integer, not '8000'"),
        ({}, "port = true", r"'port' must be a valid integer"),
        ({}, "port = [1]", r"'port' must be a valid integer"),
        ({}, "port = ", r"cannot be read"),
        ({"HEXSERVE_MAX_QUEUED": "0"}, "", r"greater than or equal to 1, not '0'$"),
        ({"HEXSERVE_HOST": ""}, "", r"^HEXSERVE_HOST must have at least 1 character, not ''$"),
        ({"HEXSERVE_BUNDLE": " "}, "", r"^HEXSERVE_BUNDLE must have at least 1 character, not ' '$"),
        ({}, 'host = ""', r"'host' must have at least 1 character, not ''$"),
        ({"hexserve_api_keys": "k"}, "", r"^unknown environment variable hexserve_api_keys; .* HEXSERVE_API_KEYS$"),
        ({"HEXSERVE_STEP_TIMEOUT_S": "0.5"}, "", r"^step_timeout_s must be 0 or at least 1: less would"),
        ({"HEXSERVE_STEP_TIMEOUT_S": "86401"}, "", r"less than or equal to 86400"),
        (
            {"HEXSERVE_KV_FILE": "kv"},
            "isolate_prefix_cache = true",
            r"^kv_file and isolate_prefix_cache exclude each other",
        ),
        ({"HEXSERVE_LORA": "french"}, "", r"^lora: 'french' is not NAME=FOLDER$"),
        ({}, 'lora = "a=x,a=y"', r"^lora: two adapters are called a$"),
        ({"HEXSERVE_MODEL_NAME": "a"}, 'lora = "a=x"', r"^lora: the adapter a has the name of the model$"),
        ({}, "a = " + "[" * 100_000, r"nested too deeply"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, environment: dict[str, str], toml: str, expected: str) -> None:
    file = tmp_path / "hexserve.toml"
    file.write_text(toml)
    with pytest.raises(SettingsError, match=expected):
        load_settings({}, environment, file)


@pytest.mark.parametrize("level", ["INFO", "Warning", "debug"])
def test_log_levels_in_any_case(tmp_path: Path, level: str) -> None:
    file = tmp_path / "hexserve.toml"
    file.write_text(f'log_level = "{level}"')
    for found in (
        load_settings({}, {"HEXSERVE_LOG_LEVEL": level}, None),
        load_settings({"log_level": level}, {}, None),
        load_settings({}, {}, file),
    ):
        assert found.engine.log_level == level.lower()


@pytest.mark.parametrize(
    ("content", "finding"),
    [
        (codecs.BOM_UTF8 + b"port = 1", "it begins with a UTF-8 byte order mark"),
        (codecs.BOM_UTF16_LE + "port = 1".encode("utf-16-le"), "it is UTF-16"),
        (codecs.BOM_UTF16_BE + "port = 1".encode("utf-16-be"), "it is UTF-16"),
        (codecs.BOM_UTF32_LE + "port = 1".encode("utf-32-le"), "it is UTF-32"),
        ("port = 1".encode("utf-16-le"), "it holds zero bytes, as UTF-16 does"),
        (b'host = "\xe9"', "it is not UTF-8"),
    ],
)
def test_a_file_in_another_encoding_is_named(tmp_path: Path, content: bytes, finding: str) -> None:
    file = tmp_path / "hexserve.toml"
    file.write_bytes(content)
    advice = "save it as UTF-8 without a byte order mark"
    with pytest.raises(SettingsError, match=f"^settings file {file} cannot be read: {finding}; {advice}$"):
        load_settings({}, {}, file)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        load_settings({}, {}, tmp_path / "none.toml")


def test_every_setting_has_a_sentence_and_no_other_field_has() -> None:
    assert len(options()) <= 50
    assert all(option.help.endswith(".") or option.help.endswith("...") for option in options())


def test_every_other_field_of_the_engine_is_explained() -> None:
    text, settings = inspect.getsource(EngineConfig), {option.key for option in options()}
    others = [field.name for field in dataclasses.fields(EngineConfig) if field.name not in settings]
    assert [name for name in others if not re.search(rf"^    {name}: .+  # \w", text, re.MULTILINE)] == []


def test_a_secret_has_no_flag_and_is_never_shown() -> None:
    assert [option.key for option in options() if option.has(Trait.SECRET)] == ["api_keys"]
    assert "sk-anna" not in repr(load_settings({}, {"HEXSERVE_API_KEYS": "sk-anna"}, None))


def test_a_window_brings_its_sinks() -> None:
    assert load_settings({"window": 64}, {}, None).engine.sinks == SINKS
    assert load_settings({}, {}, None).engine.sinks == 0


def test_the_defaults_obey_their_own_bounds() -> None:
    def text(value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    environment = {option.variable: text(option.default) for option in options()}
    assert load_settings({}, environment, None) == load_settings({}, {}, None)


def test_the_variable_of_the_qnn_runtime_is_a_setting() -> None:
    """What the engine's processes read from the environment, `serve` must take from there as well."""
    engine = load_settings({}, {OPTIONS_VARIABLE: "x"}, None).engine
    assert as_variables(engine) == {OPTIONS_VARIABLE: "x"}


def test_a_resolved_bundle_brings_its_cost_folder(tmp_path: Path) -> None:
    settings = load_settings({}, {}, None).with_bundle(tmp_path / "bundle", tmp_path)
    assert (settings.engine.bundle, settings.engine.cost_cache) == (str(tmp_path / "bundle"), str(tmp_path / "costs"))


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such files")
def test_a_settings_file_that_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, reason in ((tmp_path / "pipe", "a named pipe"), (Path("/dev/zero"), "a device"), (tmp_path, "a folder")):
        with pytest.raises(SettingsError, match=f"cannot be read: it is {reason}, not a regular file"):
            load_settings({}, {}, path)


@pytest.mark.parametrize("value", ["0x" + "f" * 6000, "9" * 5000, "[" * 3000 + "]" * 3000])
def test_a_settings_file_with_a_value_without_end(value: str, tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text(f"port = {value}")
    with pytest.raises(SettingsError, match=r"^.{1,300}$"):
        load_settings({}, {}, tmp_path / "settings.toml")


def test_a_folder_of_models_takes_the_place_of_the_embedded_one() -> None:
    assert load_settings({}, {}, None).engine.bundle == "demo"
    assert load_settings({"models_dir": "models"}, {}, None).engine.bundle == ""
    assert load_settings({"models_dir": "models"}, {"HEXSERVE_BUNDLE": "demo"}, None).engine.bundle == "demo"
