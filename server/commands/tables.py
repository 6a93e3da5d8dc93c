"""The one look of tables in a terminal."""

from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

FILE_WIDTH = 400  # of no terminal: nothing wraps


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", *, words: int = 0) -> Table:
    """Rows below their headings; the first `words` columns are text and may wrap, the others figures. No markup."""
    made = Table(
        title=Text(title, style="bold") if title else None,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for number, heading in enumerate(headings):
        if number < words:
            made.add_column(Text(heading), overflow="fold", min_width=min(8, len(heading)))
        else:
            made.add_column(Text(heading), justify="right", no_wrap=True)
    for row in rows:
        made.add_row(*map(Text, row))
    return made


def wide_console() -> Console:
    """Standard output; as wide as a table may be where it is no terminal."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=FILE_WIDTH)
