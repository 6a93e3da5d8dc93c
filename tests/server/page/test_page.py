"""The page: which files are served and how, and that none of them could run or load what is not its own."""

import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from engine.config import EngineConfig
from server.middleware.auth import KeyRing, read_keys
from server.page.files import FOLDER, LISTED, PAGE_POLICY, PATHS
from server.settings import Settings
from tests.server.one_model import create_app
from tests.server.scripted_engine import ScriptedEngine

SCRIPTS = sorted(FOLDER.glob("*.js"))
SHEETS = sorted(FOLDER.glob("*.css"))
IMPORT = re.compile(r"""\bfrom '([^']+)'|\bimport\s*\(?\s*['"`]""")
# Ways from text to markup or to code.
NEVER = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|setHTML"
    r"|\beval\b|\bFunction\(|javascript:|srcdoc|setAttribute\('(?:style|on)|importScripts|\bWorker\("
)
OUTSIDE = re.compile(r"https?://[a-z0-9.]+")


async def test_every_file_is_served_with_its_type_and_policy(client: httpx.AsyncClient) -> None:
    for path, (name, media_type) in LISTED.items():
        answer = await client.get(path)
        assert answer.status_code == 200
        assert answer.content == (FOLDER / name).read_bytes()
        assert answer.headers["content-type"].split(";")[0] == media_type
        assert answer.headers["content-security-policy"] == PAGE_POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert (answer.headers["cache-control"], answer.headers["referrer-policy"]) == ("no-cache", "no-referrer")


def test_the_policy_allows_the_own_origin_and_nothing_inline() -> None:
    rules = dict(rule.strip().split(" ", 1) for rule in PAGE_POLICY.split(";"))
    assert {name: rules[name] for name in ("default-src", "base-uri", "form-action", "frame-ancestors")} == {
        "default-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    assert [rules[name] for name in ("script-src", "style-src", "connect-src")] == ["'self'"] * 3
    assert rules["img-src"] == "'self' data:"
    assert "unsafe" not in PAGE_POLICY and "*" not in PAGE_POLICY


async def test_a_browser_that_has_a_file_is_not_sent_it_again(client: httpx.AsyncClient) -> None:
    first = await client.get("/page/main.js")
    tag = first.headers["etag"]
    assert re.fullmatch('"[0-9a-f]{32}"', tag)
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        again = await client.get("/page/main.js", headers={"If-None-Match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    other = await client.get("/page/main.js", headers={"If-None-Match": '"other"'})
    assert (other.status_code, other.content) == (200, first.content)


async def test_a_head_has_no_body(client: httpx.AsyncClient) -> None:
    answer = await client.head("/")
    assert (answer.status_code, answer.content) == (200, b"")
    assert int(answer.headers["content-length"]) == len((FOLDER / "index.html").read_bytes())


@pytest.mark.parametrize(
    "path",
    ["/page/", "/page/files.py", "/page/../files.py", "/page/%2e%2e/files.py", "/page/index.html", "/index.html"],
)
async def test_nothing_else_is_served(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 404


def test_every_file_of_the_folder_is_listed_once() -> None:
    assert sorted(name for name, _ in LISTED.values()) == sorted(path.name for path in FOLDER.iterdir())


def test_the_files_are_part_of_the_package() -> None:
    project = tomllib.loads((FOLDER.parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["tool"]["setuptools"]["package-data"]["server.page"] == ["static/*"]


async def test_it_can_be_turned_off(engine: ScriptedEngine) -> None:
    transport = httpx.ASGITransport(create_app(Settings(EngineConfig("unused"), page=False), engine, KeyRing()))
    async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
        for path in ("/", "/page/main.js", "/v1/steps"):
            assert (await client.get(path)).status_code == 404


async def test_the_page_asks_for_the_key_itself_so_its_files_need_none(engine: ScriptedEngine) -> None:
    for is_on in (True, False):
        app = create_app(Settings(EngineConfig("unused"), page=is_on), engine, read_keys("anna:sk-anna", ""))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
            statuses = {(await client.get(path)).status_code for path in PATHS}
            assert statuses == ({200} if is_on else {401})
            for path in ("/v1/steps", "/v1/models", "/page/other.js"):
                assert (await client.get(path)).status_code == 401
            assert (await client.post("/")).status_code == 401


async def test_it_is_no_part_of_the_api(app: FastAPI) -> None:
    assert not any(path.startswith("/page") or path == "/" for path in app.state.document.read()["paths"])


class Elements(HTMLParser):
    """Collects tags with their attributes, and the text between them."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts[self.found[-1][0] if self.found else ""] = data


def test_the_html_has_nothing_inline_and_leads_only_to_listed_files() -> None:
    reader = Elements()
    reader.feed((FOLDER / "index.html").read_text(encoding="utf-8"))
    for tag, attributes in reader.found:
        assert tag != "style" and not any(name == "style" or name.startswith("on") for name in attributes)
        if tag == "script":
            assert attributes["src"]
        for name in ("src", "href"):
            address = attributes.get(name)
            assert (
                address is None or f"/{address}" in PATHS or address.startswith("#")
            )  # relative: a proxy's path holds
    assert not reader.texts.get("script", "").strip()


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda path: path.name)
def test_a_script_makes_no_markup_and_imports_only_listed_files(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert not NEVER.search(text)
    for found in IMPORT.finditer(text):
        assert found[1] is not None, "only static imports"
        assert f"/page/{found[1].removeprefix('./')}" in PATHS
    assert set(OUTSIDE.findall(text)) <= {"http://www.w3.org"}  # the name of SVG's namespace, no address


@pytest.mark.parametrize("file", SHEETS, ids=lambda path: path.name)
def test_a_sheet_loads_nothing(file: Path) -> None:
    assert not re.search(r"@import|url\(|expression\(|@font-face", file.read_text(encoding="utf-8"))


def test_no_file_is_large() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 200_000
    assert max(len(path.read_text(encoding="utf-8").splitlines()) for path in FOLDER.iterdir()) <= 400
