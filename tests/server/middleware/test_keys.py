"""Where keys come from, what is refused about them, and that every one of them is compared."""

import hmac
from hashlib import sha256
from pathlib import Path

import pytest

from engine.errors import UnusableInput
from server.middleware.auth import KeyRing, offered_keys, read_keys

SECRET = "sk-very-secret-1"


def test_keys_of_a_list_and_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    hashed = sha256(b"sk-hashed").hexdigest()
    path.write_text(f"# who may come in\n\nanna:{SECRET}\nben:sha256:{hashed.upper()}\nsk-bare\n", encoding="utf-8")
    ring = read_keys("sk-first, carl:sk-second,", str(path))
    assert len(ring) == 5
    for key, name in {
        "sk-first": "key-1",
        "sk-second": "carl",
        SECRET: "anna",
        "sk-hashed": "ben",
        "sk-bare": "line-5",
    }.items():
        assert ring.owner([key]) == name
    for wrong in ("", "sk-firs", "sk-first ", hashed, f"sha256:{hashed}", "anna", "é" * 9):
        assert ring.owner([wrong]) is None
    assert ring.owner(["wrong", SECRET]) == "anna"
    assert SECRET not in repr(ring)


def test_what_tells_keys_apart_says_none_of_them() -> None:
    """It stays the same when other keys come and go."""
    both, one = read_keys(f"anna:{SECRET},ben:sk-ben", ""), read_keys(f"anna:{SECRET}", "")
    identity = both.identity("anna")
    assert identity == one.identity("anna") != both.identity("ben")
    assert len(identity) == 32 and identity not in (SECRET, sha256(SECRET.encode()).hexdigest()[:32])


def test_no_keys_is_an_open_server() -> None:
    assert len(read_keys("", "")) == 0


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("", "no key in it"),
        ("# nothing\n", "no key in it"),
        (f"an na:{SECRET}", "line 1"),
        (f"ok:{SECRET}\nben:", "line 2"),
        (f"ben:{SECRET} {SECRET}", "line 1"),
        (f"ben:{SECRET}ü", "line 1"),
        (f"ben:sha256:{SECRET}", "line 1"),
        (f"ben:{SECRET}\nben:{SECRET}2", "ben"),
        (f"ben:{SECRET}\nanna:{SECRET}", "twice"),
        ("x" * 513, "line 1"),
        (f"sha256:{'0' * 64}", "line 1: a digest needs a name before it"),
    ],
)
def test_a_bad_file_is_refused_without_showing_keys(tmp_path: Path, content: str, where: str) -> None:
    path = tmp_path / "keys"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UnusableInput, match=where) as failure:
        read_keys("", str(path))
    assert SECRET not in str(failure.value)


@pytest.mark.parametrize("listed", [",,", " ", " , "])
def test_a_list_without_a_key_is_not_an_open_server(listed: str) -> None:
    with pytest.raises(UnusableInput, match="api_keys is set but has no key in it"):
        read_keys(listed, "")


@pytest.mark.parametrize(
    ("encoding", "finding"),
    [("utf-8-sig", "it begins with a UTF-8 byte"), ("utf-16", "it is UTF-16"), ("latin-1", "it is not UTF-8")],
)
def test_a_file_in_another_encoding_is_named(tmp_path: Path, encoding: str, finding: str) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# für anna\nanna:{SECRET}\n", encoding=encoding)
    with pytest.raises(UnusableInput, match=f"^the API key file {path} cannot be read: {finding}.*; save it as UTF-8"):
        read_keys("", str(path))


def test_a_missing_file() -> None:
    with pytest.raises(UnusableInput, match="cannot be read"):
        read_keys("", "/nowhere/keys")


def test_every_key_is_compared_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = read_keys(",".join(f"sk-{number}" for number in range(50)), "")
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def counting(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    for offered in ("sk-0", "sk-49", "sk-25", "nothing"):
        compared.clear()
        ring.owner([offered])
        assert len(compared) == 50
        assert {len(side) for pair in compared for side in pair} == {32}


@pytest.mark.parametrize(
    ("headers", "keys"),
    [
        ({}, []),
        ({"authorization": "Bearer a"}, ["a"]),
        ({"authorization": "bearer   a "}, ["a"]),
        ({"authorization": "Basic a"}, []),
        ({"authorization": "Bearer"}, []),
        ({"authorization": "a"}, []),
        ({"x-api-key": "b"}, ["b"]),
        ({"api-key": "c"}, ["c"]),
        ({"authorization": "Bearer a", "x-api-key": "b", "api-key": "c"}, ["a", "b", "c"]),
    ],
)
def test_where_a_request_shows_its_key(headers: dict[str, str], keys: list[str]) -> None:
    assert offered_keys(headers) == keys


def test_an_empty_ring_owns_nothing() -> None:
    assert KeyRing().owner(["", "a"]) is None


def test_the_place_of_a_bad_key_in_a_list_is_told() -> None:
    for listed, place in ((f"{SECRET} {SECRET}", 1), (f"a:{SECRET},,b:", 3)):
        with pytest.raises(UnusableInput, match=f"^api_keys, entry {place}:"):
            read_keys(listed, "")


def test_a_thousand_keys_and_no_more() -> None:
    keys = [f"sk-{number}" for number in range(1001)]
    assert len(read_keys(",".join(keys[:1000]), "")) == 1000
    with pytest.raises(UnusableInput, match="1001 API keys are given; 1000 are allowed"):
        read_keys(",".join(keys), "")
