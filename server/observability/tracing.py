"""Whether requests are traced, and where spans go. Nothing of OpenTelemetry is imported unless they are."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.types import ASGIApp

from engine.errors import UnusableInput
from engine.processes import install_command

if TYPE_CHECKING:
    from server.observability.spans import Tracing

Layer = Callable[[ASGIApp], ASGIApp]
_log = logging.getLogger("hexserve")
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
MISSING = f"needs packages that are not installed: {install_command('otel')}"


def traces_url(setting: str) -> str:
    """Where a collector at this address takes spans. Raises UnusableInput."""
    try:
        parts = urlsplit(setting)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)
    except ValueError:  # brackets that hold no IPv6 address
        is_address = False
    if not is_address:
        raise UnusableInput(f"otel: '{setting}' is no address such as http://localhost:4318")
    return setting.rstrip("/") + "/v1/traces"


def variable_of(environment: Mapping[str, str]) -> str:
    """The variable that says where spans go, '' when none does or another one switches traces off."""
    if environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp" or environment.get("OTEL_SDK_DISABLED") == "true":
        return ""
    return next((name for name in ENDPOINTS if environment.get(name)), "")


@contextmanager
def tracing_layers(
    setting: str, version: str, environment: Mapping[str, str] = os.environ
) -> Iterator[tuple[Layer, ...]]:
    """The layers to put around the app: one or none. Raises UnusableInput for a setting; a variable only warns."""
    tracing = None
    try:
        tracing = _open(setting, version, environment)
    except UnusableInput as error:
        if setting:
            raise
        _log.warning("requests are not traced: %s", error)
    try:
        yield () if tracing is None else (tracing.layer,)
    finally:
        if tracing is not None:
            tracing.close()


def _open(setting: str, version: str, environment: Mapping[str, str]) -> "Tracing | None":
    variable = variable_of(environment)
    if not (setting or variable):
        return None
    address = traces_url(setting) if setting else None
    protocol = next((environment[name] for name in PROTOCOLS if environment.get(name)), PROTOCOL)
    if not setting and protocol != PROTOCOL:
        raise UnusableInput(f"{variable} is for {protocol}, traces go out as {PROTOCOL}")
    try:
        from server.observability.spans import to_collector  # noqa: PLC0415 (packages of an extra)
    except ModuleNotFoundError:
        raise UnusableInput(f"{'otel' if setting else variable} {MISSING}") from None
    try:
        return to_collector(address, version)
    except ValueError as error:
        raise UnusableInput(f"a variable of OpenTelemetry cannot be used: {error}") from error
