"""Writes docs/how-to/page-light.png, page-dark.png and page-steps.png into the folder that SCREENSHOTS names.

Each PNG has the page's words in its text `Labels`: a test compares them with those of today's page.
"""

import json
import os
from pathlib import Path

from browsing import Tab, close_browser, expect, tab
from painting import chunk

FOLDER = Path(os.environ["SCREENSHOTS"])
FRAME = {"viewport": {"width": 1240, "height": 790}, "device_scale_factor": 1.25}
TITLES = ("Names for a cat", "Packing list for three days", "Why is the sky blue?")
WEATHER = "What should I wear in Oslo today?"
TOOL = {
    "name": "weather",
    "description": "The weather of today",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
RESULT = '{"temperature": 4, "wind": "strong", "rain": "from noon"}'
ADVICE = """Layers: it is **4 °C**, windy, and it will rain from noon.

| hours | wear |
|---|---|
| before noon | a warm jacket, gloves |
| after noon | a hat, shoes that stay dry |
"""
# What is painted, measured or said by a model differs from one drawing to the next.
LABELS = """() => {
  const varies = '.prose, .facts, .reasoning > summary, .unseen, .detail, .panel-state'
  const shown = [...document.querySelectorAll('body *')].filter((e) => e.checkVisibility() && !e.closest(varies))
  const own = (e) => [...e.childNodes].filter((node) => node.nodeType === Node.TEXT_NODE).map((node) => node.data)
  const texts = shown.flatMap((e) => [e.ariaLabel ?? '', e.placeholder ?? '', ...own(e)])
  return [...new Set(texts.map((text) => text.trim().replace(/\\d[\\d.,]*/g, '#')))].sort()
}"""

# Presses the button when the last steps have all that the page can draw: a click from here would come too late.
PAUSE_WHEN_VARIED = """async () => {
  const { stepEvents } = await import('/page/api.js')
  const ends = new AbortController()
  let last = []
  for await (const { steps } of stepEvents('demo', ends.signal)) {
    last = [...last, ...steps].slice(-25)
    const parts = last.flatMap((step) => step.segments)
    const isFull = (step) => step.segments.reduce((sum, { rows }) => sum + rows, 0) === step.rows
    const isVaried =
      new Set(parts.map(({ sequence }) => sequence)).size > 3 &&
      parts.some(({ kind, rows }) => kind === 'prefill' && rows > 8) &&
      parts.some(({ accepted }) => accepted) &&
      parts.some(({ guesses, accepted }) => guesses > accepted) &&
      !last.every(isFull)
    if (isVaried) break
  }
  document.querySelector('[aria-label="Pause"]').click()
  ends.abort()
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))
}"""


def draw(it: Tab, name: str) -> None:
    """Write what is seen, and the words that stand there."""
    it.page.mouse.move(620, 400)
    png, words = it.page.screenshot(), json.dumps(it.page.evaluate(LABELS)).encode()
    end = png.rindex(chunk(b"IEND", b""))
    (FOLDER / name).write_bytes(png[:end] + chunk(b"tEXt", b"Labels\0" + words) + png[end:])


def images() -> None:
    """A conversation about an image, in the light theme."""
    with tab("sees", has_key=False, **FRAME) as it:
        it.ready()
        it.button("Close the steps").click()
        it.page.locator("#picture-file").set_input_files(os.environ["SCENE"])
        expect(it.page.get_by_role("list", name="Images of the next message").get_by_role("img")).to_have_count(1)
        for count, question in enumerate(("What do you see?", "What color is the triangle?"), 1):
            it.ask(question)
            it.answered(count)
        draw(it, "page-light.png")


def tools() -> None:
    """A conversation with reasoning, a called tool and a table, in the dark theme."""
    with tab("thinks", color_scheme="dark", **FRAME | {"viewport": {"width": 1240, "height": 890}}) as it:
        it.button("Close the steps").click()
        for title in TITLES:
            it.ask(title)
            it.answered()
            it.button("New chat").click()
        it.button("Settings of this conversation").click()
        it.page.get_by_label("System prompt").fill(f"answers: {json.dumps({WEATHER: ADVICE})}")
        it.page.get_by_label("Tools", exact=True).fill(json.dumps([TOOL]))
        it.button("Save").click()
        it.ask(WEATHER)
        it.answered()
        it.page.get_by_label("Result of weather", exact=True).fill(RESULT)
        it.button("Send result").click()
        it.answered(2)
        draw(it, "page-dark.png")


def steps() -> None:
    """The picture while others are served too."""
    with tab("steps", has_key=False, **FRAME) as it:
        it.ready()
        it.button("Settings of this conversation").click()
        it.page.get_by_label("Temperature").fill("0")
        it.button("Save").click()
        for count, question in enumerate(("Tell me a short story.", "What is the capital of France?"), 1):
            it.ask(question)
            it.answered(count)
        it.page.evaluate(PAUSE_WHEN_VARIED)
        draw(it, "page-steps.png")


if __name__ == "__main__":
    images()
    tools()
    steps()
    close_browser()
