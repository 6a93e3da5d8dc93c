"""What limits of a client without a key are counted for."""

import pytest

from server.middleware.auth import address_name


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
