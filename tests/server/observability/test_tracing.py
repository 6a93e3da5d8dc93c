"""Whether requests are traced: the setting, OpenTelemetry's variables, packages that are missing."""

import logging
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from engine.errors import UnusableInput
from server.observability.tracing import traces_url, tracing_layers, variable_of

HERE = "http://127.0.0.1:9"
ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": HERE}


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)


@pytest.fixture
def no_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("opentelemetry")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "server.observability.spans", raising=False)
    monkeypatch.delitem(sys.modules, "server.observability.spans", raising=False)


def test_addresses() -> None:
    assert traces_url("http://localhost:4318") == "http://localhost:4318/v1/traces"
    assert traces_url("https://collector.example/otlp/") == "https://collector.example/otlp/v1/traces"
    for wrong in ("localhost:4318", "ftp://host", "http://", "http://host/?key=1", "http://[", "4318"):
        with pytest.raises(UnusableInput, match=r"^otel: '.*' is no address such as http://localhost:4318$"):
            traces_url(wrong)


@pytest.mark.parametrize(
    ("environment", "variable"),
    [
        ({}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, ""),
        (ENDPOINT, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        (ENDPOINT | {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": HERE}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"),
        (ENDPOINT | {"OTEL_TRACES_EXPORTER": "none"}, ""),
        (ENDPOINT | {"OTEL_SDK_DISABLED": "true"}, ""),
    ],
)
def test_variables(environment: Mapping[str, str], variable: str) -> None:
    assert variable_of(environment) == variable


@pytest.mark.parametrize(("setting", "environment", "layers"), [("", {}, 0), (HERE, {}, 1), ("", ENDPOINT, 1)])
def test_when_there_is_a_layer(setting: str, environment: Mapping[str, str], layers: int) -> None:
    with tracing_layers(setting, "", environment) as found:
        assert len(found) == layers


@pytest.mark.usefixtures("no_packages")
def test_missing_packages_are_one_sentence(caplog: pytest.LogCaptureFixture) -> None:
    sentence = f'needs packages that are not installed: {sys.executable} -m pip install "hexserve[otel]"'
    with pytest.raises(UnusableInput) as raised, tracing_layers(HERE, "", {}):
        pass
    assert str(raised.value) == f"otel {sentence}"
    with tracing_layers("", "", ENDPOINT) as layers:
        assert layers == ()
    assert caplog.messages == [f"requests are not traced: OTEL_EXPORTER_OTLP_ENDPOINT {sentence}"]


def test_a_variable_for_another_protocol_only_warns(caplog: pytest.LogCaptureFixture) -> None:
    with tracing_layers("", "", ENDPOINT | {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}) as layers:
        assert layers == ()
    assert caplog.messages[0].endswith("OTEL_EXPORTER_OTLP_ENDPOINT is for grpc, traces go out as http/protobuf")


def test_the_command_refuses_what_is_no_address() -> None:
    command = [sys.executable, "-m", "server", "serve", "--port", "0", "--otel", "localhost:4318"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert done.stderr == "error: otel: 'localhost:4318' is no address such as http://localhost:4318\n"


def test_nothing_is_imported_that_is_not_wanted() -> None:
    program = "import sys, server.run, server.commands.serve.start; print('opentelemetry.sdk' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "False\n"


def test_a_provider_of_the_whole_process_learns_nothing_from_the_web_framework() -> None:
    """Such as `opentelemetry-instrument` sets: FastAPI would write the values of a refused body into its records."""
    program = Path(__file__).with_name("instrumented.py")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("422 is 400: 0 spans, 0 logs\n", "")
