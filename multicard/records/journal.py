"""A journal on disk: what a long command knows, a JSON object a line,
from which the same command goes on.

One command at a time has a journal. A line that was cut off does not count.
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
    """The entries of earlier commands, and those of this one.

    Args:
        path: of the file; its folder is made.
        owner: the beginning of errors: the key that names the journal, and whose it is.
        head: what must be the same for earlier entries to count; the first line. None: they always
            count.
        anew: forget earlier entries.

    Raises:
        ValueError: another command has the journal now, or its head differs.
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
                f"{owner}: another command has it now; choose another name",
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
                self._lock.release()  # whoever keeps the error keeps this journal
                raise Refusal(
                    "journal.other-head",
                    f"{owner}: it was cut off with another {' and '.join(changed)}; choose another"
                    f" name, or remove {path}",
                    owner=owner,
                    changed=changed,
                    file=str(path),
                )
            head = None
        flags = os.O_WRONLY | os.O_CREAT | (os.O_APPEND if text else os.O_TRUNC)
        self._file = os.fdopen(private.no_link(path, flags), "a" if text else "w")
        if text and not text.endswith("\n"):
            self._file.write("\n")  # after the line that was cut off
        if head is not None:
            self._write(head)

    def add(self, **values: Any) -> None:
        """Add an entry, at once on disk; a JournalError says that it cannot be written."""
        self.entries.append(values)
        self._write(values)

    def close(self) -> None:
        """Let other commands have it."""
        with suppress(OSError):  # of a line that could not be written, as `add` has said
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
    """A journal's head where its entries are measurements: the commit with its changes,
    and the machine.
    """
    code = environment.git() or {}
    return {"code": [code.get("commit"), code.get("changes")], "machine": environment.host()}
