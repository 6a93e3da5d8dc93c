"""Addresses as people write them, and what goes with every request."""

import pytest

from server.commands.http_client.address import (
    Unreachable,
    UnusableAddress,
    headers_for,
    may_use_proxy,
    root_address,
)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://h:1", "http://h:1"),
        ("http://h:1/v1/", "http://h:1"),
        ("h:1/v1", "http://h:1"),
        ("https://h/api/v1", "https://h/api"),
    ],
)
def test_addresses(url: str, address: str) -> None:
    assert root_address(url) == address


@pytest.mark.parametrize("url", ["http://", "", "ftp://h", "http://h:99999", "http://h:0", "http://[::1", "http://a b"])
def test_no_address(url: str) -> None:
    with pytest.raises(Unreachable, match="is not an http address"):
        root_address(url)


def test_proxies_only_for_others() -> None:
    hosts = {"127.0.0.1:8": False, "localhost": False, "[::1]:8": False, "10.0.0.1": True, "h.org": True}
    assert {host: may_use_proxy(f"http://{host}") for host in hosts} == hosts


def test_keys_are_a_header() -> None:
    assert headers_for("k")["Authorization"] == "Bearer k"
    assert "Authorization" not in headers_for("")


@pytest.mark.parametrize("key", ["ké", "k\n", "k\udce9"])
def test_a_key_that_no_header_holds(key: str) -> None:
    with pytest.raises(UnusableAddress, match="printable ASCII"):
        headers_for(key)
