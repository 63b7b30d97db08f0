"""Rows of text as a table; on a terminal that is too narrow for it, as lines below each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from duoln.system.visible import visible

_AROUND_CELL, _AROUND_TABLE = 3, 1


class RowsTable:
    """A plain table of text. No word is cut: rows become lines where a table of their words is too wide.

    Args:
        title: the line above.
        headings: a text for each column.
        rows: the cells of each row, which may have several lines.
        bad: the numbers of the rows that are red.
        whole: the numbers of the columns that are never broken into lines.
        ruled: whether a line is drawn between rows.
        right: the numbers of the columns that stand to the right, such as those of figures.
    """

    def __init__(self, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], bad: Sequence[int] = (),
                 whole: Sequence[int] = (), ruled: bool = False, right: Sequence[int] = ()) -> None:
        self.title, self.headings, self.rows, self.ruled = title, headings, rows, ruled
        self.bad, self.whole, self.right = bad, whole, right

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        widths = self._widths(options.max_width)
        if widths is None:
            yield from self._lines()
        else:
            yield self._table(widths)

    def _table(self, widths: Sequence[int]) -> Table:
        table = Table(title=self.title, title_justify="left", show_lines=self.ruled)
        for i, (heading, width) in enumerate(zip(self.headings, widths, strict=True)):
            table.add_column(heading, width=width, justify="right" if i in self.right else "left")
        for i, row in enumerate(self.rows):
            table.add_row(*row, style="red" if i in self.bad else None)
        return table

    def _lines(self) -> Iterator[Text]:
        yield Text(visible(self.title), style="italic")
        for i, row in enumerate(self.rows):
            style = "red" if i in self.bad else ""
            cells = [visible(", ".join(cell.splitlines())) for cell in row]
            yield Text(cells[0], style=style)
            for heading, cell in zip(self.headings[1:], cells[1:], strict=True):
                if cell:
                    yield Text(f"  {visible(' '.join(heading.split()))}: {cell}" if heading else f"  {cell}",
                               style=style)

    def _widths(self, room: int) -> list[int] | None:
        """The width of each column; None if the least do not fit. What is left goes to columns that want more."""
        least, wanted = [], []
        for i, heading in enumerate(self.headings):
            lines = [line for row in self.rows for line in visible(row[i]).splitlines()]
            pieces = lines if i in self.whole else [word for line in lines for word in line.split()]
            least.append(max((cell_len(text) for text in (*heading.split(), *pieces)), default=0))
            wanted.append(max((cell_len(text) for text in (*heading.splitlines(), *lines)), default=0))
        spare = room - sum(least) - _AROUND_CELL * len(least) - _AROUND_TABLE
        if spare < 0:
            return None
        for done, i in enumerate(sorted(range(len(least)), key=lambda i: wanted[i] - least[i])):
            more = min(wanted[i] - least[i], spare // (len(least) - done))
            least[i] += more
            spare -= more
        return least
