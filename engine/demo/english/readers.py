"""Documentation files as paragraphs of plain text."""

import re
from html.parser import HTMLParser
from pathlib import Path

# What starts or ends with one of these is a paragraph of its own.
_BLOCKS = frozenset({
    *("p", "li", "ul", "ol", "dl", "dt", "dd", "td", "th", "tr", "table", "div", "section", "article", "blockquote"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "title", "br", "hr", "para", "simpara", "listitem", "item"),
})  # fmt: skip
# No prose is within these.
_SILENT = frozenset({
    *("script", "style", "head", "nav", "pre", "code-block", "screen", "programlisting", "svg", "math"),
    *("footer", "header", "button"),
})  # fmt: skip
_CODE = re.compile(r"[A-Z]<<+\s+(.*?)\s+>>+|[A-Z]<([^<>]*)>", re.DOTALL)


class _Paragraphs(HTMLParser):
    """Collects the text between block elements."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[str] = []
        self._pieces: list[str] = []
        self._silent: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """End the paragraph at a block; be silent within what is no prose."""
        if tag in _BLOCKS:
            self._end()
        if tag in _SILENT:
            self._end()
            self._silent.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """An element without content ends a paragraph, no more."""
        if tag in _BLOCKS:
            self._end()

    def handle_endtag(self, tag: str) -> None:
        """End the paragraph at a block; speak again after what is no prose."""
        if tag in _BLOCKS:
            self._end()
        if tag in self._silent:
            del self._silent[self._silent.index(tag) :]

    def handle_data(self, data: str) -> None:
        """Collect text."""
        if not self._silent:
            self._pieces.append(data)

    def close(self) -> None:
        """End the last paragraph too."""
        super().close()
        self._end()

    def _end(self) -> None:
        text = " ".join("".join(self._pieces).split())
        if text:
            self.found.append(text)
        self._pieces.clear()


def markup_paragraphs(markup: str) -> list[str]:
    """The paragraphs of HTML, DocBook or Mallard text, with white space collapsed and without what is preformatted."""
    parser = _Paragraphs()
    parser.feed(markup)
    parser.close()
    return parser.found


def pod_paragraphs(pod: str) -> list[str]:
    """The paragraphs of Perl's plain old documentation, without commands and verbatim text."""
    found = []
    for block in re.split(r"\n\s*\n", pod):
        if block and not block[0].isspace() and not block.startswith("="):
            text = block
            while (simpler := _CODE.sub(r"\1\2", text)) != text:
                text = simpler
            found.append(" ".join(text.split()))
    return found


def paragraphs(path: Path) -> list[str]:
    """The paragraphs of a documentation file, by its ending: `.pod`, or else markup."""
    text = path.read_text(encoding="utf-8", errors="replace")
    return pod_paragraphs(text) if path.suffix == ".pod" else markup_paragraphs(text)
