"""Where library code says what it is doing. The commands pass one that draws; everything else passes `Reporter()`."""

from __future__ import annotations

from types import TracebackType


class Task:
    """One long job of known or unknown length; a context manager. The base class shows nothing."""

    def __enter__(self) -> Task:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def advance(self, amount: int = 1, detail: str = "") -> None:
        """Report `amount` more units done; `detail` is a short text such as the current cost and gap."""


class Reporter:
    """The silent reporter, and the interface of all others."""

    def note(self, text: str) -> None:
        """One line worth telling: what was folded, pinned, assumed."""

    def task(self, title: str, total: int | None = None) -> Task:
        """Begin a job of `total` units (None: unknown)."""
        return Task()
