"""Host headers: which are served."""

import pytest

from server.middleware.origins import host_is_allowed, host_name, is_loopback


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
