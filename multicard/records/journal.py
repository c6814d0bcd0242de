"""A journal on disk, from which an interrupted long command continues.

Each line is a JSON object. Only one command at a time may use a journal. A truncated line is
ignored.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from multicard.machine import environment, private
from multicard.messages import Message, Refusal


class JournalError(OSError):
    """A journal cannot be written to."""


class Journal:
    """The entries of earlier commands and of this one.

    Args:
        path: the file; its folder is created.
        owner: how error messages begin: with the key that names the journal, and its owner.
        head: values that must be unchanged for earlier entries to count. They are the first line.
            None if earlier entries always count.
        anew: forget earlier entries.

    Raises:
        ValueError: another command is using the journal, or its head differs.
    """

    def __init__(
        self, path: Path, owner: str, head: Mapping[str, Any] | None = None, anew: bool = False
    ) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(path.with_suffix(".lock"), mode=0o600)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise Refusal(
                "journal.in-use",
                f"{owner}: another command is using it now; choose another name",
                owner=owner,
            ) from None
        text = path.read_text() if path.exists() and not anew else ""
        self.entries: list[dict[str, Any]] = []
        for line in text.split("\n"):
            with suppress(ValueError):
                self.entries.append(dict(json.loads(line)))
        if head is not None and self.entries:
            before = self.entries.pop(0)
            changed = [key for key, value in head.items() if before.get(key) != value]
            if changed:
                # The traceback of the error keeps this object alive, and with it the lock.
                self._lock.release()
                raise Refusal(
                    "journal.other-head",
                    f"{owner}: it was interrupted with another {' and '.join(changed)}; choose"
                    f" another name, or remove {path}",
                    owner=owner,
                    changed=changed,
                    file=str(path),
                )
            head = None
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if text else os.O_TRUNC)
        self._file = os.fdopen(private.no_link(path, flags), "a" if text else "w")
        if text and not text.endswith("\n"):
            self._file.write("\n")  # End the line that an earlier command left truncated.
        if head is not None:
            self._write(head)

    def add(self, **values: Any) -> None:
        """Add an entry and write it to disk at once; a JournalError says that this failed."""
        self.entries.append(values)
        self._write(values)

    def close(self) -> None:
        """Release the journal for other commands."""
        # Closing fails again for a line that could not be written; `add` has reported it.
        with suppress(OSError):
            self._file.close()
        self._lock.release()

    def _write(self, values: Mapping[str, Any]) -> None:
        try:
            self._file.write(json.dumps(values) + "\n")
            self._file.flush()
        except OSError as error:
            message = Message(
                "journal.unwritable",
                f"cannot write to {self.path}: {error.strerror}",
                file=str(self.path),
                reason=error.strerror,
            )
            raise JournalError(message) from None


def code_and_machine() -> dict[str, Any]:
    """Return the head for a journal of measurements: the commit, its changes, and the machine."""
    code = environment.git() or {}
    return {"code": [code.get("commit"), code.get("changes")], "machine": environment.host()}
