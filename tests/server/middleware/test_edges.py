"""Where the guard meets the outside: settings, the command's exit code, proxies in front."""

import httpx
import pytest

from engine.config import EngineConfig, Trait
from engine.errors import UnusableInput
from server.commands.serve.start import start
from server.settings import Settings, SettingsError, load_settings, options
from tests.server.served import served

CHAT = "/v1/chat/completions"
SECRET = "sk-very-secret"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cors_origins", "https://a.example, b.example"),
        ("cors_origins", "https://a.example/"),
        ("allowed_hosts", "https://a.example"),
        ("allowed_hosts", "a.example:80"),
        ("allowed_hosts", "a.example/b"),
    ],
)
def test_lists_with_wrong_parts(name: str, text: str) -> None:
    with pytest.raises(SettingsError, match=name):
        load_settings({name: text}, {}, None)


def test_keys_come_from_the_environment_and_have_no_flag() -> None:
    settings = load_settings({}, {"HEXSERVE_API_KEYS": SECRET}, None)
    assert settings.api_keys == SECRET
    assert SECRET not in repr(settings)
    assert [option.key for option in options() if option.has(Trait.SECRET)] == ["api_keys"]


@pytest.mark.parametrize("options", [{"api_key_file": "/nowhere/keys"}, {"api_keys": f"a b:{SECRET}"}])
def test_a_server_with_bad_keys_does_not_start(options: dict[str, str]) -> None:
    with pytest.raises(UnusableInput) as refused:
        start(Settings(EngineConfig("demo"), **options))  # type: ignore[arg-type]
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(("trusted", "statuses"), [("", [400, 429, 429]), ("127.0.0.1", [400, 400, 429])])
def test_whose_forwarded_address_is_believed(trusted: str, statuses: list[int]) -> None:
    with served(trusted_proxies=trusted, requests_per_minute=1) as server, httpx.Client(base_url=server.url) as client:
        found = [
            client.post(CHAT, json={}, headers={"X-Forwarded-For": address}).status_code
            for address in ("192.0.2.1", "192.0.2.2", "192.0.2.2")
        ]
    assert found == statuses
