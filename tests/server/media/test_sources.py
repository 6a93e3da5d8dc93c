"""Which hosts and addresses images may come from."""

import sys
from pathlib import Path

import pytest

from server.media.sources import MediaSources, is_public


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "172.16.3.4", "192.168.1.1", "169.254.169.254"),
        *("100.64.0.1", "198.18.0.1", "192.0.2.1", "224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"),
        *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd12:3456::1", "ff02::1", "2001:db8::1"),
        *("::ffff:127.0.0.1", "::ffff:a9fe:a9fe", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::1"),
        *("2001:0:0:0:0:0:80ff:fffe", "fd00:ec2::254", "localhost", "", "0x7f.1", "2130706433"),
    ],
)
def test_addresses_that_are_no_part_of_the_open_internet(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.215.14", "8.8.8.8", "2606:4700::6810:84e5", "64:ff9b::808:808"])
def test_public_addresses(address: str) -> None:
    assert is_public(address)


def test_a_list_of_hosts_and_folders(tmp_path: Path) -> None:
    sources = MediaSources.of(f" Images.example. ,10.0.0.7, {tmp_path} ,0:0::1")
    assert sources.folders == (tmp_path,)
    assert sources.takes_host("images.EXAMPLE") and sources.takes_host("10.0.0.7")
    assert not sources.takes_host("example") and not sources.takes_host("a.images.example")
    assert sources.reaches("10.0.0.7") and sources.reaches("::1") and not sources.reaches("10.0.0.8")


def test_any_host_is_any_public_one() -> None:
    sources = MediaSources.of("*")
    assert sources.takes_host("example.org") and not sources.reaches("127.0.0.1")
    assert not MediaSources.of("").takes_host("example.org")


@pytest.mark.parametrize(
    "part", ["https://a.example", "a.example:80", "a.example/b", "user@a.example", "a b", "~nobody-here/x"]
)
def test_what_is_neither_host_nor_folder(part: str) -> None:
    with pytest.raises(ValueError, match="neither a host without scheme, port and path nor an absolute folder"):
        MediaSources.of(part)


@pytest.mark.skipif(sys.platform == "win32", reason="its absolute paths begin with a drive")
def test_a_relative_folder_is_refused() -> None:
    with pytest.raises(ValueError, match="absolute"):
        MediaSources.of("./images")
