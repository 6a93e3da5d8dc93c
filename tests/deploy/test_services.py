"""compose.yaml, prometheus.yml and the systemd unit."""

import configparser
import re
from pathlib import Path
from typing import Any

import yaml

from server.settings import options
from tests.deploy.dockerfile_reader import read_dockerfile

DEPLOY = Path(__file__).parents[2] / "deploy"
FINAL = read_dockerfile((DEPLOY.parent / "Dockerfile").read_text(encoding="utf-8"))[-1]


def load(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def drain_seconds() -> float:
    return float(next(option for option in options() if option.key == "drain_s").default)


def test_compose_builds_the_repository_and_publishes_to_this_machine_only() -> None:
    service = load("compose.yaml")["services"]["hexserve"]
    assert (DEPLOY / service["build"]["context"] / "Dockerfile").is_file()
    assert [port.split(":")[0] for port in service["ports"]] == ["127.0.0.1"]
    assert service["ports"][0].endswith(f":{FINAL.last('EXPOSE')}")
    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]
    assert service["cap_drop"] == ["ALL"]
    assert float(service["stop_grace_period"].removesuffix("s")) > drain_seconds()


def test_prometheus_is_optional_and_finds_the_server() -> None:
    services = load("compose.yaml")["services"]
    prometheus = services["prometheus"]
    assert prometheus["profiles"] == ["metrics"]
    assert set(prometheus["depends_on"]) == {"hexserve"}
    source = prometheus["volumes"][0].split(":")[0]
    assert (DEPLOY / source).is_file()
    (job,) = load("prometheus.yml")["scrape_configs"]
    assert job["metrics_path"] == "/metrics"
    assert job["static_configs"] == [{"targets": [f"hexserve:{FINAL.last('EXPOSE')}"]}]


def test_the_unit_lets_running_requests_finish() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "hexserve.service", encoding="utf-8")
    service = unit["Service"]
    assert re.fullmatch(r"%h/\S+/hexserve serve", service["ExecStart"])
    assert service["KillMode"] == "mixed"
    assert float(service["TimeoutStopSec"]) > drain_seconds()
    assert service["RestartPreventExitStatus"] == "2"
    assert unit["Install"]["WantedBy"] == "default.target"


def test_every_setting_named_in_deploy_exists() -> None:
    known = {option.variable for option in options()} | {"HEXSERVE_CONFIG"}
    for path in DEPLOY.iterdir():
        if path.is_file():
            named = set(re.findall(r"\bHEXSERVE_[A-Z_]+\b", path.read_text(encoding="utf-8")))
            assert named <= known, path.name
