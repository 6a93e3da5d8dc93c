"""Host names and origins: which are ours."""

import pytest

from server.http.guard.caller import address_name
from server.http.guard.hosts import host_is_allowed, host_name, is_loopback
from server.http.guard.origins import answer_headers, is_origin, preflight_headers

ORIGIN = "https://app.example.org"


@pytest.mark.parametrize(
    ("header", "ours"),
    [
        (None, True),
        ("localhost", True),
        ("LOCALHOST:8000", True),
        ("api.localhost:8000", True),
        ("127.0.0.1:8000", True),
        ("127.9.9.9", True),
        ("[::1]:8000", True),
        ("[::ffff:127.0.0.1]", True),
        ("mine.example:99", True),
        ("Mine.Example.", True),
        ("", False),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("evil.example:8000", False),
        ("notlocalhost", False),
        ("10.0.0.1", False),
        ("0.0.0.0", False),
        ("[::2]:8000", False),
        ("[::1", True),
        ("localhost@evil.example", False),
        ("evil.example#localhost", False),
        ("2130706433", False),
    ],
)
def test_hosts_on_loopback(header: str | None, ours: bool) -> None:
    assert host_is_allowed(header, {"mine.example"}, arrived_on_loopback=True) is ours


def test_hosts_elsewhere() -> None:
    assert host_is_allowed("anything", (), arrived_on_loopback=False)
    assert not host_is_allowed("anything", {"mine.example"}, arrived_on_loopback=False)
    assert host_is_allowed("anything", {"*"}, arrived_on_loopback=True)


def test_names() -> None:
    assert host_name(" Mine.Example.:80 ".replace(".:", ":")) == "mine.example"
    assert [is_loopback(name) for name in ("::1", "127.0.0.1", "0.0.0.0", "", "localhost")] == [
        True,
        True,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("text", "good"),
    [
        (ORIGIN, True),
        ("http://localhost:3000", True),
        ("*", True),
        ("null", True),
        ("chrome-extension://abcdef", True),
        ("https://app.example.org/", False),
        ("app.example.org", False),
        ("https://*.example.org", False),
        ("", False),
        ("https://", False),
    ],
)
def test_origins(text: str, good: bool) -> None:
    assert is_origin(text) is good


def test_nothing_is_said_to_origins_by_default() -> None:
    assert answer_headers(ORIGIN, ()) == ()
    asked = {"origin": ORIGIN, "access-control-request-method": "POST"}
    assert preflight_headers("OPTIONS", asked, ()) is None


def test_a_preflight_names_what_was_asked() -> None:
    asked = {
        "origin": ORIGIN,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization, content-type,x-stainless-os",
    }
    shown = dict(preflight_headers("OPTIONS", asked, {ORIGIN}) or ())
    assert shown["Access-Control-Allow-Origin"] == ORIGIN
    assert shown["Access-Control-Allow-Headers"] == "authorization, content-type,x-stainless-os"
    assert "POST" in shown["Access-Control-Allow-Methods"]
    assert shown["Vary"] == "Origin"
    assert "Access-Control-Allow-Credentials" not in shown
    for hostile in ("a\r\nset-cookie: b", "a b", "x" * 3000, "é"):
        asked["access-control-request-headers"] = hostile
        assert "Access-Control-Allow-Headers" not in dict(preflight_headers("OPTIONS", asked, {"*"}) or ())
    assert preflight_headers("OPTIONS", asked, {"https://other.example"}) is None
    assert preflight_headers("GET", asked, {"*"}) is None
    assert preflight_headers("OPTIONS", {"origin": ORIGIN}, {"*"}) is None


def test_answers_to_origins() -> None:
    assert dict(answer_headers(ORIGIN, {"*"}))["Access-Control-Allow-Origin"] == "*"
    assert dict(answer_headers("https://evil.example", {ORIGIN})) == {"Vary": "Origin"}
    assert dict(answer_headers(None, {ORIGIN})) == {"Vary": "Origin"}


@pytest.mark.parametrize(
    ("client", "name"),
    [
        (None, "unknown"),
        (("testclient", 1), "unknown"),
        (("192.0.2.7", 1), "192.0.2.7"),
        (("2001:db8:1:2:aaaa::9", 1), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 1), "fe80::/64"),
        (("::ffff:192.0.2.7", 1), "192.0.2.7"),
    ],
)
def test_the_name_of_an_address(client: tuple[str, int] | None, name: str) -> None:
    assert address_name(client) == name
