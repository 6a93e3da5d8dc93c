"""Origins: which are answered, and with which headers."""

import pytest

from server.http.guard.origins import answer_headers, is_origin, preflight_headers

ORIGIN = "https://app.example.org"


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
    exposed = dict(answer_headers(ORIGIN, {"*"}))["Access-Control-Expose-Headers"].split(", ")
    assert {"x-request-id", "request-id", "retry-after"} <= set(exposed), "both formats' name of a request's id"
    assert dict(answer_headers(ORIGIN, {"*"}))["Access-Control-Allow-Origin"] == "*"
    assert dict(answer_headers("https://evil.example", {ORIGIN})) == {"Vary": "Origin"}
    assert dict(answer_headers(None, {ORIGIN})) == {"Vary": "Origin"}
