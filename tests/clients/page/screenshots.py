"""Writes docs/how-to/page-light.png, page-dark.png and page-steps.png into the folder that SCREENSHOTS names."""

import json
import os
from pathlib import Path

from browsing import Tab, close_browser, tab

FOLDER = Path(os.environ["SCREENSHOTS"])
FRAME = {"viewport": {"width": 1240, "height": 790}, "device_scale_factor": 1.25}
TITLES = ("Names for a cat", "Packing list for three days", "Why is the sky blue?")
QUESTION = "Compare three ways to sort a list, with a short example."
ANSWER = """They differ in time, and in whether equal items keep their order.

| way | time | keeps the order |
|---|--:|:-:|
| insertion sort | n² | yes |
| merge sort | n log n | yes |
| heap sort | n log n | no |

For short lists **insertion sort** is hard to beat:

```python
def insertion_sort(items: list[int]) -> None:
    for end in range(1, len(items)):
        item = items.pop(end)
        items.insert(bisect_right(items, item, hi=end), item)
```
"""
WEATHER = "What should I wear in Oslo today?"
TOOL = {
    "name": "weather",
    "description": "The weather of today",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
RESULT = '{"temperature": 4, "wind": "strong", "rain": "from noon"}'
ADVICE = """Layers: it is **4 °C**, windy, and it will rain from noon.

1. a warm jacket that keeps the wind out
2. gloves and a hat
3. shoes that stay dry"""

# Presses the button when at least four run: a click from here would come too late.
PAUSE_WHEN_BUSY = """() => new Promise((done) => {
  const queue = [...document.querySelectorAll('.figure')].find((figure) => figure.textContent.includes('running'))
  const look = () => {
    if (!/[4-9] [+]/.test(queue.textContent)) return
    watching.disconnect()
    document.querySelector('[aria-label="Pause"]').click()
    requestAnimationFrame(() => requestAnimationFrame(done))
  }
  const watching = new MutationObserver(look)
  watching.observe(queue, { childList: true, subtree: true, characterData: true })
})"""


def told(it: Tab, answers: dict[str, str], tools: str = "") -> None:
    """Say in the settings what the obedient model shall answer."""
    it.button("Settings of this conversation").click()
    it.page.get_by_label("System prompt").fill(f"answers: {json.dumps(answers)}")
    it.page.get_by_label("Tools", exact=True).fill(tools)
    it.button("Save").click()


def earlier(it: Tab) -> None:
    """Conversations that are there already."""
    for title in TITLES:
        it.ask(title)
        it.answered()
        it.button("New chat").click()


def chat(scheme: str) -> None:
    """A conversation with reasoning, a table and code; in the dark one a tool is called."""
    with tab("thinks", color_scheme=scheme, **FRAME) as it:
        it.button("Close the steps").click()
        earlier(it)
        if scheme == "light":
            told(it, {QUESTION: ANSWER})
            it.ask(QUESTION)
        else:
            told(it, {WEATHER: ADVICE}, json.dumps([TOOL]))
            it.ask(WEATHER)
            it.answered()
            it.page.get_by_label("Result of weather", exact=True).fill(RESULT)
            it.button("Send result").click()
            it.answered(2)
        it.answered(1 if scheme == "light" else 2)
        it.page.locator("#scroll").evaluate("(place) => { place.scrollTop = 0 }")
        it.page.mouse.move(620, 400)
        it.page.screenshot(path=FOLDER / f"page-{scheme}.png")


def steps() -> None:
    """The picture while others are served too."""
    with tab("steps", has_key=False, **FRAME) as it:
        it.ready()
        it.ask("Tell me a short story.")
        it.answered(1)
        it.ask("Tell me another story.")
        it.answered(2)
        it.page.evaluate(PAUSE_WHEN_BUSY)
        it.page.screenshot(path=FOLDER / "page-steps.png")


if __name__ == "__main__":
    chat("light")
    chat("dark")
    steps()
    close_browser()
