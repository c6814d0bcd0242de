"""Run a command of multicard as a process in the foreground, which prints as if it was typed."""

import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress


def run_to_end(command: Sequence[str]) -> int:
    """Run a command and return its exit code, which is 128 + N if signal N ended it.

    If a signal is answered by a KeyboardInterrupt with its name (`interruption.answered`), the
    signal is passed on. From a terminal the command receives it twice, and answers it once.
    """
    process = subprocess.Popen(command)
    while True:
        try:
            code = process.wait()
            return code if code >= 0 else 128 - code
        except KeyboardInterrupt as interrupted:
            name = str(interrupted) or signal.SIGINT.name
            with suppress(ProcessLookupError):
                process.send_signal(signal.Signals[name])
