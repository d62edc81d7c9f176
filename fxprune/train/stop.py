"""Ctrl-C and SIGTERM ask for a stop; training stops after the step, when its state is complete."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def handling(handlers: Mapping[int, Handler]) -> Iterator[dict[int, Any]]:
    """Handle signals inside the block. Gives the handlers to restore at its end. Signals reach the main thread only: in
    other threads nothing is installed."""
    before: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        before |= {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


class Stop:
    """While it ``listens``, the first signal is only noted (``asked``); a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.asked: int | None = None
        self._before: dict[int, Any] = {}
        self._owner = os.getpid()

    @contextmanager
    def listens(self) -> Iterator[None]:
        with handling({signal.SIGINT: self._note, signal.SIGTERM: self._note}) as self._before:
            yield

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:  # in a worker of a loader: its parent handles Ctrl-C, SIGTERM ends it
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        if self.asked is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.asked is None and hasattr(signal, "SIGCHLD"):
            # The workers of the loader may have got the signal, too. When one of them ends, a DataLoader raises an
            # error wherever training is at that moment, but the step must be finished.
            self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        self.asked = number

    def raise_(self) -> None:
        """Do what the signal would have done without this handler."""
        if self.asked == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt
