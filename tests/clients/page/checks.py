"""The chat page in a real browser, against live servers: what a user sees, and that nothing else happens."""

# servers: limited thinks embeds sees

import json
import re
from base64 import b64encode
from pathlib import Path
from typing import Any

import axe_playwright_python
from browsing import KEY, Tab, close_browser, expect, tab
from checking import check, run
from painting import disc_png
from playwright.sync_api import Locator

AXE = (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
TOOL = {
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
LONG = "word " * 700
PICTURE = "Rows of the last steps by request. Arrow keys describe single steps."
FOCUSED = "({activeElement: e}) => e.ariaLabel || e.labels?.[0]?.textContent.trim() || e.textContent.trim()"
LISTED = """async () => {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem('hexserve.key')}` }
  const listed = (await (await fetch('v1/models', { headers })).json()).data
  return listed.map(({ id, meta }) => [id, meta.device])
}"""
RICH = """# A title

Some **bold** text, `code` and a [link](https://example.org/page).

- one
- two
  1. inner

| name | value |
|---|---:|
| a | 1 |

```python
print("hello")
```

> A quote."""
HOSTILE = """<img src=x onerror="window.harmed=1"><script>window.harmed=1</script>
<iframe src="https://example.org"></iframe> <style>body{display:none}</style> <svg onload="window.harmed=1">

[run](javascript:window.harmed=1) [data](data:text/html,<script>1</script>) [fine](https://example.org/ok)
![picture](https://example.org/cat.png) <https://example.org/auto> <a href="https://example.org/raw">raw</a>

| <b onclick="window.harmed=1">x</b> | y |
|---|---|
| <script>window.harmed=1</script> | `<img src=x onerror=window.harmed=1>` |

```<script>window.harmed=1</script>
</code></pre><script>window.harmed=1</script>
```"""


@check
def key_is_asked_for_and_kept_for_the_tab_only() -> None:
    with tab(has_key=False, allowed="status of 401") as it:
        dialog = it.page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        field = dialog.get_by_label("API key", exact=True)
        expect(field).to_be_focused()
        field.fill("sk-wrong")
        field.press("Enter")
        expect(dialog.get_by_label("API key", exact=True)).to_have_value("")
        dialog.get_by_label("API key", exact=True).fill(KEY)
        it.button("Use key").click()
        it.ready()
        it.ask("say: welcome")
        expect(it.answered()).to_contain_text("welcome")
        stored = it.page.evaluate("[JSON.stringify(localStorage), JSON.stringify(sessionStorage)]")
        assert KEY not in stored[0] and KEY in stored[1]


BLOCKED = """for (const name of ['localStorage', 'sessionStorage']) Object.defineProperty(window, name, {
  get() { throw new DOMException('blocked', 'SecurityError') }, configurable: true,
})"""


@check
def a_browser_that_keeps_nothing_chats_all_the_same() -> None:
    with tab(has_key=False, allowed="status of 401", before=BLOCKED) as it:
        it.page.get_by_role("dialog").get_by_label("API key", exact=True).fill(KEY)
        it.button("Use key").click()
        it.ready()
        it.ask("say: welcome")
        expect(it.answered()).to_contain_text("welcome")


@check
def answers_stream() -> None:
    with tab() as it:
        it.ask(LONG)
        lengths = set()
        expect(it.button("Stop")).to_be_visible()
        while it.button("Stop").is_visible():
            lengths.add(len(it.last.locator(".prose").last.inner_text()))
        assert len(lengths) > 3, lengths
        answer = it.answered()
        expect(answer.locator(".prose").last).to_have_text(LONG.strip())
        expect(answer.locator(".facts")).to_have_text(re.compile(r"\d+ tokens · [\d.]+ per second · first after"))


@check
def an_answer_is_stopped_by_the_button_and_by_escape() -> None:
    with tab() as it:
        for number, stop in enumerate((lambda: it.button("Stop").click(), lambda: it.page.keyboard.press("Escape")), 1):
            it.ask(LONG)
            expect(it.last.locator(".prose").last).to_contain_text("word")
            stop()
            answer = it.answered(number)
            expect(answer.locator(".facts")).to_contain_text("stopped")
            assert 0 < len(answer.locator(".prose").last.inner_text()) < len(LONG) - 10
            expect(it.prompt).to_be_focused()


@check
def an_edit_branches_the_conversation() -> None:
    with tab() as it:
        it.ask("say: first")
        it.answered()
        it.ask("say: second")
        it.answered(2)
        it.button("Edit").first.click()
        field = it.page.get_by_label("Edit the message")
        expect(field).to_be_focused()
        field.fill("say: other")
        field.press("Enter")
        expect(it.answered(1)).to_contain_text("other")
        before = it.button("Version before")
        expect(it.page.get_by_role("group", name="Version 2 of 2")).to_be_visible()
        before.focus()
        it.page.keyboard.press("Enter")
        expect(it.button("Version after")).to_be_focused()
        expect(it.answers).to_have_count(2)
        expect(it.answers.first).to_contain_text("first")
        expect(it.last).to_contain_text("second")
        it.button("Version after").click()
        expect(it.answers).to_have_count(1)
        it.button("Edit").click()
        it.page.keyboard.press("Escape")
        expect(it.page.locator(".said")).to_have_text("say: other")


GIVEN = """([way, file]) => {
  const bytes = Uint8Array.from(atob(file), (letter) => letter.charCodeAt(0))
  const files = new DataTransfer()
  files.items.add(new File([bytes], 'disc.png', { type: 'image/png' }))
  if (way === 'paste') {
    const event = new ClipboardEvent('paste', { clipboardData: files, bubbles: true, cancelable: true })
    document.getElementById('prompt').dispatchEvent(event)
  } else {
    const event = new DragEvent('drop', { dataTransfer: files, bubbles: true, cancelable: true })
    document.getElementById('thread').dispatchEvent(event)
  }
}"""
WATCH_CAMERA = """() => {
  const open = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices)
  navigator.mediaDevices.getUserMedia = async (wanted) => (window.stream = await open(wanted))
}"""
CAMERA_STATES = "stream.getTracks().map((track) => track.readyState)"
NO_CAMERA = """() => {
  navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException("", "NotFoundError"))
}"""


def give(it: Tab, way: str) -> None:
    """Drop or paste a large picture."""
    it.page.evaluate(GIVEN, [way, b64encode(disc_png(2400, 2400)).decode()])


def waiting_pictures(it: Tab) -> Locator:
    return it.page.get_by_role("list", name="Images of the next message").get_by_role("img")


def choose(it: Tab, button: str, name: str, kind: str, data: bytes) -> None:
    """Choose a file behind a button."""
    with it.page.expect_file_chooser() as choosing:
        it.button(button).click()
    choosing.value.set_files([{"name": name, "mimeType": kind, "buffer": data}])


@check
def images_are_dropped_pasted_and_chosen() -> None:
    with tab("sees", has_key=False) as it:
        it.ready()
        waiting = waiting_pictures(it)
        for count, way in enumerate(("drop", "paste"), 1):
            give(it, way)
            expect(waiting).to_have_count(count)
        it.button("Remove image 1").click()
        expect(waiting).to_have_count(1)
        it.ask("What do you see?")
        expect(it.answered()).to_contain_text("red circle")
        sent = it.page.locator("article.user").last
        expect(sent.get_by_role("img")).to_have_count(1)
        expect(waiting).to_have_count(0)
        choose(it, "Add images", "disc.txt", "text/plain", b"no image")
        expect(it.page.get_by_role("alert")).to_have_text("disc.txt is no PNG, JPEG, WebP or GIF image.")
        choose(it, "Add images", "disc.png", "image/png", b"no image")
        expect(it.page.get_by_role("alert")).to_have_text("disc.png is not an image that can be read.")
        choose(it, "Add images", "disc.png", "image/png", disc_png(200, 200))
        expect(it.page.get_by_role("alert")).to_have_count(0)
        expect(waiting).to_have_count(1)
        it.ask("What do you see?")
        expect(it.answered(2)).to_contain_text("red circle")
        it.page.reload()
        it.ready()
        expect(it.page.locator("article.user").get_by_role("img")).to_have_count(2)


@check
def a_picture_is_taken_by_the_camera() -> None:
    with tab("sees", has_key=False, permissions=["camera"]) as it:
        it.ready()
        it.page.evaluate(WATCH_CAMERA)
        for key, count in (("Escape", 0), ("Enter", 1)):
            it.button("Take a picture").press("Enter")
            dialog = it.page.get_by_role("dialog", name="Camera")
            expect(dialog.get_by_label("What the camera sees")).to_have_js_property("readyState", 4)
            expect(it.button("Take picture", dialog)).to_be_focused()
            assert not (found := violations(it, "camera")), found
            it.page.keyboard.press(key)
            expect(dialog).to_have_count(0)
            expect(waiting_pictures(it)).to_have_count(count)
            assert it.page.evaluate(CAMERA_STATES) == ["ended"]
            expect(it.button("Take a picture")).to_be_focused()
        with it.page.expect_request("**/chat/completions") as asking:
            it.ask("What do you see?")
        [image, _] = asking.value.post_data_json["messages"][-1]["content"]
        assert image["image_url"]["url"].startswith("data:image/"), image
        expect(it.answered()).to_contain_text("red circle")


@check
def without_a_camera_the_page_says_why_and_takes_files() -> None:
    with tab("sees", has_key=False, permissions=["clipboard-read"]) as it:
        it.ready()
        told = it.page.get_by_role("alert")
        it.button("Take a picture").click()
        expect(told).to_contain_text("This page is not allowed to use the camera.")
        it.page.evaluate(NO_CAMERA)
        it.button("Take a picture").click()
        expect(told).to_contain_text("This device has no camera.")
        choose(it, "Choose images", "disc.png", "image/png", disc_png(200, 200))
        expect(told).to_have_count(0)
        expect(waiting_pictures(it)).to_have_count(1)


@check
def a_model_that_sees_nothing_is_offered_no_images() -> None:
    with tab() as it:
        give(it, "paste")
        for button in ("Add images", "Take a picture"):
            expect(it.button(button)).to_be_hidden()
        expect(it.page.get_by_role("list", name="Images of the next message")).to_be_hidden()


@check
def an_edit_is_kept_while_an_answer_comes() -> None:
    with tab() as it:
        it.ask("say: one")
        it.answered()
        it.button("Edit").click()
        field = it.page.get_by_label("Edit the message")
        field.fill("say: other")
        it.ask(LONG)
        expect(it.button("Stop")).to_be_visible()
        field.press("Enter")
        expect(field).to_have_value("say: other")
        expect(it.answered(2)).to_contain_text("word")
        field.press("Enter")
        expect(it.answered(1)).to_contain_text("other")


@check
def a_retry_is_another_version() -> None:
    with tab() as it:
        it.ask("say: again")
        it.answered()
        it.button("Retry").focus()
        it.page.keyboard.press("Enter")
        expect(it.page.get_by_role("group", name="Version 2 of 2")).to_be_visible()
        expect(it.answered()).to_contain_text("again")
        expect(it.prompt).to_be_focused()
        it.button("Version before").click()
        expect(it.page.get_by_role("group", name="Version 1 of 2")).to_be_visible()


def chats(it: Tab) -> list[str]:
    return it.page.locator("#chats .name").all_inner_texts()


@check
def two_conversations_survive_a_reload() -> None:
    with tab() as it:
        it.ask("say: apple")
        it.answered()
        it.button("New chat").click()
        it.ask("say: pear")
        expect(it.answered()).to_contain_text("pear")
        it.page.reload()
        it.ready()
        assert chats(it) == ["say: pear", "say: apple"]
        expect(it.last).to_contain_text("pear")
        it.page.locator("#chats button").last.click()
        expect(it.answers).to_have_count(1)
        expect(it.last).to_contain_text("apple")
        it.button("Rename").click()
        it.page.get_by_label("Name of the conversation").fill("Fruit")
        it.page.keyboard.press("Enter")
        expect(it.page.get_by_role("heading", level=1)).to_have_text("Fruit")
        it.page.reload()
        it.ready()
        expect(it.page.get_by_role("heading", level=1)).to_have_text("Fruit")
        it.button("Delete").click()
        it.page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
        expect(it.page.locator("#chats button")).to_have_count(1)
        it.page.reload()
        it.ready()
        assert chats(it) == ["say: pear"]


@check
def what_is_deleted_while_it_is_answered_stays_gone() -> None:
    for gone in ("here", "in another tab"):
        with tab() as it:
            it.ask("say: kept")
            it.answered()
            it.button("New chat").click()
            it.ask(LONG)
            expect(it.last.locator(".prose").last).to_contain_text("word")
            if gone == "here":
                it.button("Delete").click()
                it.page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
            else:
                other = it.page.context.new_page()
                other.goto(f"{it.origin}/page/icon.svg")
                other.evaluate("localStorage.removeItem(`hexserve.chat.${localStorage['hexserve.current']}`)")
            expect(it.last).to_contain_text("kept")
            it.page.reload()
            it.ready()
            assert chats(it) == ["say: kept"], gone


@check
def another_tab_follows() -> None:
    with tab() as it:
        it.ask("say: here")
        it.answered()
        other = Tab(it.page.context.new_page(), it.origin)
        other.page.goto(f"{it.origin}/")
        other.ready()
        expect(other.last).to_contain_text("here")
        other.ask("say: there")
        other.answered(2)
        expect(it.answers).to_have_count(2)
        expect(it.last).to_contain_text("there")
        expect(it.page.locator("article")).to_have_count(4)
        assert not other.faults, other.faults


@check
def a_conversation_is_exported() -> None:
    with tab() as it:
        it.ask("say: kept")
        it.answered()
        found = {}
        for name in ("Markdown", "JSON"):
            it.button("Export").click()
            it.page.get_by_label(name).check()
            with it.page.expect_download() as downloading:
                it.button("Download").click()
            found[downloading.value.suggested_filename] = downloading.value.path().read_text(encoding="utf-8")
        assert found["say-kept.md"] == "# say: kept\n\n## You\n\nsay: kept\n\n## scripted\n\nkept\n"
        assert [message["content"] for message in json.loads(found["say-kept.json"])["messages"]] == [
            "say: kept",
            "kept",
        ]


@check
def markdown_is_drawn_and_code_is_copied() -> None:
    with tab(permissions=["clipboard-read", "clipboard-write"]) as it:
        it.ask(RICH)
        answer = it.answered()
        expect(answer.get_by_role("heading", name="A title")).to_be_visible()
        expect(answer.locator("strong")).to_have_text("bold")
        assert answer.locator("li").count() == 3
        expect(answer.locator("td.right")).to_have_text("1")
        expect(answer.locator("blockquote")).to_have_text("A quote.")
        it.button("Copy code", answer).click()
        expect(it.button("Copied", answer)).to_be_visible()
        assert it.page.evaluate("navigator.clipboard.readText()") == 'print("hello")'


@check
def a_hostile_answer_is_only_text() -> None:
    with tab() as it:
        it.ask(HOSTILE)
        answer = it.answered()
        for place in (answer, it.page.locator("article.user")):
            assert not place.locator("img, script, iframe, style, svg[onload], b, object, embed").count()
        links = answer.locator("a")
        assert [link.get_attribute("href") for link in links.all()] == [
            "https://example.org",
            "https://example.org/ok",
            "https://example.org/cat.png",
            "https://example.org/auto",
            "https://example.org/raw",
        ]
        for link in links.all():
            assert set((link.get_attribute("rel") or "").split()) >= {"noopener", "noreferrer"}
            assert link.get_attribute("target") == "_blank"
        handlers = "[...document.querySelectorAll('#thread *')].flatMap((e) => e.getAttributeNames())"
        assert not [name for name in it.page.evaluate(handlers) if name.startswith("on") or name == "style"]
        assert it.page.evaluate("window.harmed") is None
        expect(answer).to_contain_text('<img src=x onerror="window.harmed=1">')
        expect(answer).to_contain_text("[run](javascript:window.harmed=1)")


def set_up(it: Tab, **fields: str) -> None:
    it.button("Settings of this conversation").click()
    for label, value in fields.items():
        it.page.get_by_label(label.replace("_", " ").capitalize(), exact=True).fill(value)
    it.button("Save").click()


@check
def a_tool_call_is_shown_and_takes_its_result() -> None:
    with tab() as it:
        set_up(it, tools="no list")
        expect(it.page.get_by_role("alert").last).to_contain_text("The tools cannot be read")
        it.page.get_by_label("Tools", exact=True).fill(json.dumps([TOOL]))
        it.button("Save").click()
        it.ask('call: weather {"city": "Paris"}\nthen\nsay: It is sunny.')
        answer = it.answered()
        call = answer.locator(".call")
        expect(call.locator("summary")).to_have_text("Calls weather")
        expect(call.locator("pre code")).to_have_text('{\n  "city": "Paris"\n}')
        call.locator("summary").click()
        expect(call.locator("pre")).to_be_hidden()
        it.page.get_by_label("Result of weather", exact=True).fill("sunny")
        it.button("Send result").click()
        expect(it.answered(2)).to_contain_text("It is sunny.")
        expect(it.page.locator("article.tool summary")).to_have_text("Result of weather")
        expect(it.page.locator(".results")).to_have_count(0)


@check
def reasoning_is_shown_and_folds() -> None:
    with tab("thinks") as it:
        it.ask("say: done thinking")
        answer = it.answered()
        expect(answer.locator("summary")).to_have_text(re.compile("Thought( for .*)?"))
        expect(answer.locator("details .prose")).to_be_hidden()
        expect(answer.locator(":scope > .body > .prose")).to_have_text("done thinking")
        answer.locator("summary").focus()
        it.page.keyboard.press("Enter")
        expect(answer.locator("details .prose")).to_have_text("The user said something.")


def ground(it: Tab) -> list[int]:
    found = it.page.evaluate("getComputedStyle(document.body).backgroundColor")
    return [int(number) for number in re.findall(r"\d+", found)][:3]


@check
def light_and_dark_by_the_system_and_by_the_switch() -> None:
    with tab(color_scheme="dark") as it:
        assert max(ground(it)) < 60
        it.button("Theme: system").click()
        expect(it.button("Theme: light")).to_be_visible()
        assert min(ground(it)) > 240
        it.page.reload()
        it.ready()
        assert min(ground(it)) > 240
        it.button("Theme: light").click()
        assert max(ground(it)) < 60
        it.page.emulate_media(color_scheme="light")
        assert max(ground(it)) < 60
        it.button("Theme: dark").click()
        assert min(ground(it)) > 240


def focused(it: Tab) -> str:
    """The name of what has the focus."""
    return str(it.page.evaluate(f"({FOCUSED})(document)"))


@check
def everything_is_reached_by_keyboard() -> None:
    with tab() as it:
        keyboard = it.page.keyboard
        it.ask("say: hello")
        it.answered()
        it.page.locator(".skip").focus()
        walk: list[str] = []
        while len(walk) < 40 and walk[-1:] != [PICTURE]:
            keyboard.press("Tab")
            walk.append(focused(it))
        expected = ["New chat", "say: hello", "Theme: system", "Shortcuts", "Rename", "Export", "Delete", "Model"]
        expected += ["Settings of this conversation", "Steps", "Messages", "Copy", "Edit", "Copy", "Retry", "Message"]
        expected += ["Pause", "Close the steps", PICTURE]
        assert walk == expected, walk
        keyboard.press("?")
        expect(it.page.get_by_role("dialog", name="Shortcuts")).to_be_visible()
        keyboard.press("Escape")
        expect(it.page.get_by_role("dialog")).to_have_count(0)
        keyboard.press("/")
        expect(it.prompt).to_be_focused()
        keyboard.type("say: two")
        keyboard.press("Shift+Enter")
        keyboard.type("lines")
        keyboard.press("Enter")
        it.answered(2)
        assert it.page.locator(".said").last.inner_text() == "say: two\nlines"
        keyboard.press("Alt+n")
        expect(it.answers).to_have_count(0)
        keyboard.press("Alt+p")
        expect(it.page.get_by_role("complementary")).to_be_hidden()
        keyboard.press("Alt+p")
        expect(it.page.get_by_role("complementary")).to_be_visible()
        keyboard.press("Alt+t")
        expect(it.button("Theme: light")).to_be_visible()


@check
def what_happens_is_said_to_screen_readers() -> None:
    with tab() as it:
        said = it.page.locator("#said")
        expect(said).to_have_attribute("role", "status")
        it.ask("say: spoken")
        expect(said).to_have_text("spoken")
        for role, name in (("main", ""), ("navigation", "Conversations"), ("complementary", "Steps of the engine")):
            expect(it.page.get_by_role(role, name=name)).to_have_count(1)
        expect(it.page.get_by_role("article", name="You")).to_have_count(1)
        expect(it.page.get_by_role("article", name="Model")).to_have_count(1)


def violations(it: Tab, state: str) -> list[str]:
    """What axe finds, in words."""
    it.page.evaluate(AXE)
    found: list[Any] = it.page.evaluate("axe.run().then((found) => found.violations)")
    return [
        f"{state}: {one['id']} ({one['help']}): {[node['html'][:160] for node in one['nodes']][:4]}" for one in found
    ]


@check
def axe_finds_nothing() -> None:
    found: list[str] = []
    for scheme in ("light", "dark"):
        with tab(color_scheme=scheme) as it:
            found += violations(it, f"{scheme}, empty")
            set_up(it, tools=json.dumps([TOOL]))
            it.ask('call: weather {"city": "Paris"}')
            it.answered()
            found += violations(it, f"{scheme}, call")
            it.button("New chat").click()
            it.ask(RICH)
            it.answered()
            it.button("Retry").click()
            expect(it.page.get_by_role("group", name="Version 2 of 2")).to_be_visible()
            it.answered()
            found += violations(it, f"{scheme}, conversation")
            it.button("Edit").click()
            found += violations(it, f"{scheme}, edit")
            it.page.keyboard.press("Escape")
            for button in ("Settings of this conversation", "Export", "Rename", "Delete", "Shortcuts"):
                it.button(button).first.click()
                found += violations(it, f"{scheme}, {button}")
                it.page.keyboard.press("Escape")
    with tab(viewport={"width": 390, "height": 844}) as it:
        found += violations(it, "phone")
        it.button("Steps").click()
        found += violations(it, "phone, steps")
    assert not found, "\n".join(found)


HUES = """() => {
  const canvas = document.querySelector('.picture')
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)
  const counts = {}
  for (let at = 0; at < data.length; at += 4) {
    const [r, g, b, a] = data.slice(at, at + 4)
    if (a === 255 && Math.max(r, g, b) - Math.min(r, g, b) > 60) counts[[r, g, b]] = (counts[[r, g, b]] ?? 0) + 1
  }
  return Object.values(counts).filter((count) => count > 30).length
}"""


@check
def the_picture_shows_two_requests_that_run() -> None:
    with tab(allowed="willReadFrequently") as it:  # it is this check that reads the canvas
        picture = it.page.get_by_role("img", name=PICTURE)
        expect(picture).to_be_visible()
        assert it.page.evaluate(HUES) == 0
        it.ask(LONG)
        it.button("New chat").click()
        it.ask(LONG)
        expect(it.page.locator(".dot")).to_have_count(2)
        expect(it.page.locator(".figure", has_text="running")).to_contain_text("2 + 0")
        expect(it.page.locator(".figure", has_text="tokens / s")).not_to_contain_text(re.compile("^0"))
        picture.focus()
        it.page.keyboard.press("ArrowLeft")
        expect(it.page.locator(".detail")).to_have_text(
            re.compile(r"Step \d+: \d+ of \d+ rows, .*request \d+.*request \d+")
        )
        assert it.page.evaluate(HUES) >= 2
        expect(it.page.locator(".dot")).to_have_count(0)
        expect(it.page.locator(".columns")).to_have_text(re.compile(r"KV slots[\d,]+ of [\d,]+"))


@check
def a_refusal_is_told_and_can_be_tried_again() -> None:
    with tab("limited", allowed="status of 429") as it:
        it.ask("say: one")
        it.answered()
        it.ask("say: two")
        answer = it.answered(2)
        expect(answer.locator(".failure")).to_contain_text("Please try again")
        expect(it.button("Retry", answer)).to_be_enabled()


@check
def a_server_of_which_no_model_can_chat_says_so() -> None:
    with tab("embeds", has_key=False) as it:
        expect(it.page.get_by_text("No model of this server can chat.")).to_be_visible()
        expect(it.page.locator("#model option")).to_have_count(0)
        it.ask("Hello?")
        expect(it.page.get_by_text("There is no model to ask.")).to_be_visible()
        expect(it.prompt).to_have_value("Hello?")


@check
def each_model_is_shown_with_its_device() -> None:
    with tab() as it:
        models = it.page.evaluate(LISTED)
        assert models and all(device for _, device in models), models
        expect(it.page.locator("#model option")).to_have_text([f"{name} · {device}" for name, device in models])


@check
def on_a_phone_nothing_is_cut_off() -> None:
    with tab(viewport={"width": 390, "height": 844}) as it:
        it.ask(RICH)
        it.answered()
        assert it.page.evaluate("document.documentElement.scrollWidth") <= 390
        expect(it.page.get_by_role("complementary")).to_be_hidden()
        navigation = it.page.get_by_role("navigation")
        expect(navigation).to_be_hidden()
        it.button("Conversations").click()
        expect(navigation).to_be_visible()
        it.page.keyboard.press("Escape")
        expect(navigation).to_be_hidden()
        it.button("Steps").click()
        box = it.page.get_by_role("complementary").bounding_box()
        assert box is not None and box["width"] <= 390


if __name__ == "__main__":
    run()
    close_browser()
