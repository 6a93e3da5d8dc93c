"""What is an origin."""

import pytest

from server.middleware.origins import is_origin

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
