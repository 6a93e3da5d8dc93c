"""The page in a headless Chromium: a tab that notes whatever goes wrong in it."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from checking import base_url
from chromium import find_chromium
from painting import disc_film
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Playwright, Request, expect, sync_playwright

KEY = os.environ.get("OPENAI_API_KEY", "")
PATIENCE_MS = 60_000
KEEP_KEY = "sessionStorage.getItem('hexserve.key') ?? sessionStorage.setItem('hexserve.key', KEY)"
expect.set_options(timeout=PATIENCE_MS)


@cache
def _playwright() -> Playwright:
    return sync_playwright().start()


@cache
def _folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory()


@cache
def browser() -> Browser:
    """One browser for all checks. It runs without its sandbox, which root and containers do not have; its camera sees
    a red disc."""
    found = find_chromium()
    film = Path(_folder().name) / "film.y4m"
    film.write_bytes(disc_film())
    camera = ["--use-fake-device-for-media-stream", f"--use-file-for-fake-video-capture={film}"]
    return _playwright().chromium.launch(
        executable_path=found.program,
        env={**os.environ, **found.variables},
        args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", *camera],
    )


def close_browser() -> None:
    """Let the browser end."""
    browser().close()
    _playwright().stop()
    _folder().cleanup()


class Tab:
    """One tab on the page of one server."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.origin = origin
        self.faults: list[str] = []
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("request", self._see)

    @property
    def prompt(self) -> Locator:
        """The field for the next message."""
        return self.page.get_by_role("textbox", name="Message", exact=True)

    @property
    def answers(self) -> Locator:
        """All that the model said."""
        return self.page.locator("article.assistant")

    @property
    def last(self) -> Locator:
        """What the model said last."""
        return self.answers.last

    def button(self, name: str, inside: Locator | None = None) -> Locator:
        """A button by the name that is read out."""
        return (inside or self.page).get_by_role("button", name=name, exact=True)

    def ready(self) -> None:
        """Wait until the page knows its model."""
        expect(self.page.locator("#model option")).not_to_have_count(0)

    def ask(self, text: str) -> None:
        """Send a message."""
        self.prompt.fill(text)
        self.prompt.press("Enter")

    def answered(self, count: int = 1) -> Locator:
        """The last of so many answers, once it has ended."""
        expect(self.answers).to_have_count(count)
        expect(self.button("Stop")).to_be_hidden()
        expect(self.last).to_have_attribute("aria-busy", "false")
        return self.last

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"console: {message.text}")

    def _see(self, request: Request) -> None:
        if not request.url.startswith((f"{self.origin}/", "data:", f"blob:{self.origin}/")):
            self.faults.append(f"leaves the origin: {request.url}")


@contextmanager
def tab(
    server: str = "scripted",
    has_key: bool = True,
    allowed: str = "",
    storage: Any = None,
    before: str = "",
    **options: Any,
) -> Iterator[Tab]:
    """A tab of its own browser context; afterwards nothing must have gone wrong in it but what `allowed` matches.
    before: a script that runs before the page's own."""
    origin = base_url(server).removesuffix("/v1")
    settings: Mapping[str, Any] = {"viewport": {"width": 1300, "height": 850}, "color_scheme": "light"} | options
    context = browser().new_context(**settings, storage_state=storage)
    context.set_default_timeout(PATIENCE_MS)
    try:
        if before:
            context.add_init_script(before)
        if has_key:
            context.add_init_script(KEEP_KEY.replace("KEY)", f"{KEY!r})"))
        made = Tab(context.new_page(), origin)
        made.page.goto(f"{origin}/")
        if has_key:
            made.ready()
        yield made
        faults = [fault for fault in made.faults if not (allowed and re.search(allowed, fault))]
        assert not faults, faults
    finally:
        context.close()
