"""Orderly end: SIGINT and SIGTERM stop a run where its state is whole."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class StopRequested(BaseException):
    """Someone asked the run to stop. Not an ``Exception``, so that no handler on the way takes it for a failure."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that this signal ended: 130 or 143."""
        return 128 + self.signal_number

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.signal_number).name}"


class Stopping:
    """Turns the first signal into ``StopRequested``: at once where nothing would be lost, else at the next ``check``.

    A second signal ends the process in the system's way. Use as a context manager in the main thread.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._at_once = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stopping:
        for number in (signal.SIGINT, signal.SIGTERM):
            # Ignored from the start means that a shell keeps its Ctrl-C from what runs in the background.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Inside, a signal interrupts: what is done here can be done again."""
        self._at_once = True
        try:
            self.check()
            yield
        finally:
            self._at_once = False

    def check(self) -> None:
        """Stop here if a signal came."""
        if self._asked:
            raise StopRequested(self._asked)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        signal.signal(number, self._before[number] or signal.SIG_DFL)
        self._asked = self._asked or number
        if self._at_once:
            self._at_once = False
            raise StopRequested(number)
