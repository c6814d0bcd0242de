"""A running command, and what it printed when."""

import re
import subprocess
from pathlib import Path
from threading import Thread

from multicard.measure.timing import clock_s

ENDED_WITHIN_S = 400.0


class Command:
    """A running command, in a session of its own, and its lines with the time of each."""

    def __init__(self, line: list[str], variables: dict[str, str], root: Path) -> None:
        self.started_s, self.ended_s = clock_s(), 0.0
        self.lines: list[tuple[float, str]] = []
        self.process = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=root,
            env=variables,
            start_new_session=True,
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append((clock_s(), line.rstrip("\n")))

    def wait(self, seconds: float = ENDED_WITHIN_S) -> int:
        """Its exit code.

        Raises:
            subprocess.TimeoutExpired: it is still running.
        """
        code = self.process.wait(seconds)
        self.ended_s = clock_s()
        self._reader.join(1.0)  # longer only where something else still holds the pipe
        return code

    @property
    def output(self) -> str:
        return "\n".join(line for _, line in self.lines)

    def said_s(self, pattern: str) -> float | None:
        """When the first line with this regular expression was printed."""
        return next((at_s for at_s, line in list(self.lines) if re.search(pattern, line)), None)
