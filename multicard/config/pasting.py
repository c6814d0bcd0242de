"""Formats overrides so that they can be pasted into a shell, with quotes where they are needed."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException

WritableValue = str | Path | bool | int | float | None

# Texts that Hydra reads without quotes.
PLAIN = re.compile(r"[\w./:@%+-]+", re.ASCII)
# Texts that Hydra would read as null, a truth value or a number.
READ_AS_OTHER_TYPE = re.compile(
    r"null|true|false|[+-]?(?:inf|nan|(?=[._]*\d)[\d_]*\.?[\d_]*(?:e[+-]?[\d_]+)?)",
    re.IGNORECASE,
)
INTERPOLATION = re.compile(r"(\\*)\$\{")  # OmegaConf's syntax; a backslash before it makes it text.
# Characters to escape in a name within braces, because Hydra does not accept quotes there.
ESCAPED = re.compile(r"[\\()\[\]{}:=, \t]")


def override(key: str, value: WritableValue | Sequence[str] | Mapping[str, str | None]) -> str:
    """Return `key=value` such that the shell and Hydra read exactly this value.

    The names in a mapping must be `typeable`.
    """
    if isinstance(value, Mapping):
        pairs = [
            f"{ESCAPED.sub(_escaped, name)}: {_written(inner)}" for name, inner in value.items()
        ]
        return shlex.quote(f"{key}={{{', '.join(pairs)}}}")
    if isinstance(value, Sequence) and not isinstance(value, str):
        parts = list(map(_written, value))
        inner = f"{key}=[{','.join(parts)}]"
        # The shell leaves brackets alone if no file name matches them.
        is_plain = all(map(PLAIN.fullmatch, parts))
        return inner if is_plain else shlex.quote(inner)
    return shlex.quote(f"{key}={_written(value)}")


def typeable(name: str) -> bool:
    """True if a name can be written within braces, where Hydra accepts neither quotes nor letters
    beyond ASCII.
    """
    try:
        overrides = OverridesParser.create().parse_overrides(
            [f"key={{{ESCAPED.sub(_escaped, name)}: null}}"]
        )
    except HydraException:
        return False
    return overrides[0].value() == {name: None}


def _written(value: WritableValue) -> str:
    """Format a value so that Hydra reads it unchanged."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return str(value)
    text = INTERPOLATION.sub(r"\1\1\\${", str(value))
    if PLAIN.fullmatch(text) and not READ_AS_OTHER_TYPE.fullmatch(text):
        return text
    return QuotedString(text, Quote.double).with_quotes()


def _escaped(match: re.Match[str]) -> str:
    return f"\\{match[0]}"
