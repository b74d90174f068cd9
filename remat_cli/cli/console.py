"""Terminal output: results on stdout, notes and progress on stderr. The only user of rich."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Sequence
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from remat_cli.report.text import shown
from remat_cli.reporter import Reporter, Task

# Pipes have no width: wide enough that ordinary tables are never cut there.
_PIPE_WIDTH = 160


class Terminal:
    """Where one command writes. `json_output`: results as one JSON object, no text. `quiet`: no notes or progress."""

    def __init__(self, *, json_output: bool = False, quiet: bool = False, text_to_stderr: bool = False) -> None:
        self.json_output = json_output
        self.quiet = quiet
        self._out = _console(sys.stderr if text_to_stderr else sys.stdout)
        self._err = _console(sys.stderr)
        self.reporter: Reporter = Reporter() if quiet else ConsoleReporter(self._err)

    def line(self, text: str = "", style: str = "") -> None:
        """One line of result text, never wrapped and never read as markup."""
        self._out.print(Text(text, style=style), soft_wrap=True)

    def text(self, text: str) -> None:
        """A finished report, as it is."""
        self._out.print(Text(text), soft_wrap=True, end="")

    @property
    def unicode(self) -> bool:
        """Whether the output can show more than ASCII."""
        return self._out.encoding.lower().startswith("utf")

    def facts(self, rows: Iterable[tuple[str, str]]) -> None:
        """Aligned `name  value` lines."""
        rows = list(rows)
        width = max((len(name) for name, _ in rows), default=0)
        for name, value in rows:
            self._out.print(Text(name.ljust(width + 2), style="bold").append(value, style="not bold"), soft_wrap=True)

    def table(
        self,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        title: str | None = None,
        right: Collection[str] = (),
    ) -> None:
        """A table; columns named in `right` are right-aligned, and long names are cut."""
        table = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
        for column in columns:
            table.add_column(column, justify="right" if column in right else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(Text(shown(str(cell))) for cell in row))
        self._out.print(table)

    def json(self, value: Any) -> None:
        """One JSON object on stdout."""
        json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
        sys.stdout.write("\n")

    def note(self, text: str) -> None:
        """A line on stderr about what was done or assumed."""
        self.reporter.note(text)


def _console(stream: Any) -> Console:
    tty = stream.isatty()
    return Console(file=stream, highlight=False, markup=False, emoji=False, width=None if tty else _PIPE_WIDTH)


class ConsoleReporter(Reporter):
    """Notes as lines on stderr; tasks as progress bars on a TTY, and as one line each elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._open_tasks = 0

    def note(self, text: str) -> None:
        self._console.print(Text(f"note: {text}", style="dim"), soft_wrap=True)

    def task(self, title: str, total: int | None = None) -> Task:
        if not self._console.is_terminal:
            self._console.print(Text(f"{title} ..."), soft_wrap=True)
            return Task()
        return _Bar(self, title, total)

    def _begin(self, title: str, total: int | None) -> TaskID:
        if self._progress is None:
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=30),
                TimeElapsedColumn(),
                TextColumn("{task.fields[detail]}", markup=False),
                console=self._console,
                transient=True,
            )
            self._progress.start()
        self._open_tasks += 1
        return self._progress.add_task(title, total=total, detail="")

    def _advance(self, task: TaskID, amount: int, detail: str) -> None:
        assert self._progress is not None
        self._progress.update(task, advance=amount, detail=detail)

    def _end(self, task: TaskID) -> None:
        assert self._progress is not None
        self._progress.remove_task(task)
        self._open_tasks -= 1
        if not self._open_tasks:
            self._progress.stop()
            self._progress = None


class _Bar(Task):
    """One row of the progress display, from entry to exit."""

    def __init__(self, reporter: ConsoleReporter, title: str, total: int | None) -> None:
        self._reporter = reporter
        self._title = title
        self._total = total
        self._row: TaskID | None = None

    def __enter__(self) -> Task:
        self._row = self._reporter._begin(self._title, self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._row is not None:
            self._reporter._end(self._row)
            self._row = None

    def advance(self, amount: int = 1, detail: str = "") -> None:
        if self._row is not None:
            self._reporter._advance(self._row, amount, detail)
