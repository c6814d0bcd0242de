"""Overrides as they are pasted into a shell: quoted where the shell or Hydra would read them otherwise."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.types import Quote, QuotedString

PLAIN = re.compile(r"[\w./+-]+")


def override(key: str, value: str | Path | Sequence[str]) -> str:
    """`key=value`, of which Hydra and the shell read exactly this value."""
    if isinstance(value, str | Path):
        return shlex.quote(f"{key}={_quoted(str(value))}")
    inner = f"{key}=[{','.join(_quoted(each) for each in value)}]"
    is_plain = all(PLAIN.fullmatch(each) for each in value)  # brackets without letters to match are left alone
    return inner if is_plain else shlex.quote(inner)


def _quoted(value: str) -> str:
    return value if PLAIN.fullmatch(value) else QuotedString(value, Quote.single).with_quotes()
