"""`python -m tests.settings_page` writes the table of all settings into docs/reference/configuration.md."""

from pathlib import Path

from server.settings import Option, options

PAGE = Path("docs/reference/configuration.md")
BEGIN, END = "<!-- begin: python -m tests.settings_page -->", "<!-- end -->"


def table() -> str:
    """Every setting with its default and what it means, in Markdown."""
    rows = "\n".join(_row(option) for option in sorted(options(), key=lambda option: option.key))
    return f"| setting | default | meaning |\n|---|---|---|\n{rows}\n"


def renewed(page: str) -> str:
    """The page with the table between its two marks made anew; ValueError if a mark is missing."""
    head, rest = page.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{table()}{END}{tail}"


def _row(option: Option) -> str:
    words = f" One of {', '.join(option.choices)}." if option.choices else ""
    default = str(option.default).lower() if isinstance(option.default, bool) else str(option.default)
    return f"| `{option.key}` | {f'`{default}`' if default else 'empty'} | {option.help}{words} |"


if __name__ == "__main__":
    PAGE.write_text(renewed(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
