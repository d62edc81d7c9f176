"""Ctrl-C and SIGTERM ask for a stop; training stops where its state is whole."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """While it is entered, the first signal is only noted (``asked``); a second Ctrl-C interrupts at once.

    Signals reach the main thread only: elsewhere nothing is installed.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._before: dict[int, Any] = {}
        self._owner = os.getpid()

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:  # a loader's worker: Ctrl-C is its parent's business, SIGTERM its own
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        if self.asked is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.asked is None and hasattr(signal, "SIGCHLD"):
            # The signal may have gone to the loader's workers, too. A DataLoader raises an error in the middle of
            # whatever runs when one of them ends; here the step must be finished.
            self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        self.asked = number

    def raise_(self) -> None:
        """What the signal would have done by itself."""
        if self.asked == signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt
