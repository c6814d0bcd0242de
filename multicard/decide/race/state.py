"""What a race knows, on disk as it comes to know it: a race that was cut off goes on by the same command.

The sweep's folder has a file for each figure, `.race/FIGURE.jsonl`, with a JSON object a line: what the race was for,
then beginnings and ends of rounds, starts of cells, blocks, and cells that are out, in their order. A line that was cut
off does not count.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from multicard.config.keys import require
from multicard.machine import environment, private
from multicard.sweep.streak import SameFailureError

FOLDER = ".race"


class State:
    """Lines of an earlier race for the same figure, and those of this one.

    Args:
        head: what must be the same for earlier blocks to count: the machine, the code. anew: forget an earlier race.

    Raises:
        ValueError: an earlier race was of other code, or on another machine, or goes on now.
    """

    def __init__(self, sweep: Path, figure: str, head: dict[str, Any], anew: bool = False) -> None:
        self.path = sweep / FOLDER / f"{figure}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.path.with_suffix(".lock"), mode=0o600)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(f"name={sweep.name}: another command runs its race now; choose another name=") from None
        before = [] if anew else list(self._read())
        self.lines = before[1:]
        changed = [key for key, value in head.items() if before and before[0].get(key) != value]
        remedy = f"choose another name=, or remove {self.path}"
        require(not changed, f"name={sweep.name}: its race was cut off with another {' and '.join(changed)}; {remedy}")
        self._file = self.path.open("a" if before else "w")
        if not before:
            self.add(**head)
        elif not self.path.read_text().endswith("\n"):
            self._file.write("\n")  # after the line that was cut off

    def add(self, **values: Any) -> None:
        """
        Raises:
            SameFailureError: it cannot be written.
        """
        try:
            self._file.write(json.dumps(values) + "\n")
            self._file.flush()
        except OSError as error:
            raise SameFailureError(f"cannot write to {self.path}: {error.strerror}") from None

    def close(self) -> None:
        with suppress(OSError):  # of a line that could not be written, as `add` has said
            self._file.close()
        self._lock.release()

    def _read(self) -> Iterator[dict[str, Any]]:
        if not self.path.exists():
            return
        for line in self.path.read_text().split("\n")[:-1]:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                yield value


def head() -> dict[str, Any]:
    """What the blocks of one race have in common: the code and the machine."""
    code = environment.git(private.ROOT) or {}
    return {"code": [code.get("commit"), code.get("changes")], "machine": environment.host()}
