"""One line per event on a stream that may be slow, full or gone, without ever waiting for it.

The loop must not stop because nobody reads its log: lines go through a bounded queue to a thread,
and what the stream does not take is counted and dropped.
"""

import contextlib
import queue
import threading
from typing import TextIO

LINES_MAX = 10_000
"""Lines that may wait for the stream: a few megabytes."""
FAREWELL_S = 1.0
"""How long a stopping daemon waits for its last lines to be taken."""


class EventLog:
    """Writes lines in order, on a thread of its own."""

    def __init__(self, stream: TextIO) -> None:
        self.lost_count = 0
        """Lines that the stream did not take."""
        self._stream = stream
        self._lines: queue.Queue[str | None] = queue.Queue(maxsize=LINES_MAX)
        self._thread = threading.Thread(target=self._run, name="kvd-log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue a line; never blocks and never raises."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.lost_count += 1

    def close(self) -> None:
        """Give the last lines a moment to leave."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(None)
        self._thread.join(FAREWELL_S)

    def _run(self) -> None:
        while True:
            line = self._lines.get()
            if line is None:
                return
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                self.lost_count += 1
