"""Overrides as they are pasted into a shell: quoted where the
shell or Hydra would read them otherwise.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException

Written = str | Path | bool | int | float | None

# texts that Hydra reads without quotes; other letters it refuses
PLAIN = re.compile(r"[\w./:@%+-]+", re.ASCII)
# Texts that Hydra reads as something else: nothing, a truth value, or a number
NO_TEXT = re.compile(
    r"null|true|false|[+-]?(?:inf|nan|(?=[._]*\d)[\d_]*\.?[\d_]*(?:e[+-]?[\d_]+)?)",
    re.IGNORECASE,
)
INTERPOLATION = re.compile(r"(\\*)\$\{")  # OmegaConf's; a backslash before it makes it text
# in a name within braces, which Hydra reads without quotes alone
ESCAPED = re.compile(r"[\\()\[\]{}:=, \t]")


def override(key: str, value: Written | Sequence[str] | Mapping[str, str | None]) -> str:
    """`key=value`, of which Hydra and the shell read exactly this value.

    Names of a mapping must be `typeable`.
    """
    if isinstance(value, Mapping):
        pairs = [
            f"{ESCAPED.sub(_escaped, name)}: {_written(inner)}" for name, inner in value.items()
        ]
        return shlex.quote(f"{key}={{{', '.join(pairs)}}}")
    if isinstance(value, Sequence) and not isinstance(value, str):
        parts = list(map(_written, value))
        inner = f"{key}=[{','.join(parts)}]"
        # brackets without letters to match are left alone
        is_plain = all(map(PLAIN.fullmatch, parts))
        return inner if is_plain else shlex.quote(inner)
    return shlex.quote(f"{key}={_written(value)}")


def typeable(name: str) -> bool:
    """True of a name that can be written within braces: Hydra reads neither quotes there,
    nor letters beyond ASCII.
    """
    try:
        read = OverridesParser.create().parse_overrides(
            [f"key={{{ESCAPED.sub(_escaped, name)}: null}}"]
        )
    except HydraException:
        return False
    return read[0].value() == {name: None}


def _written(value: Written) -> str:
    """A value as Hydra reads it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return str(value)
    text = INTERPOLATION.sub(r"\1\1\\${", str(value))
    if PLAIN.fullmatch(text) and not NO_TEXT.fullmatch(text):
        return text
    return QuotedString(text, Quote.double).with_quotes()


def _escaped(found: re.Match[str]) -> str:
    return f"\\{found[0]}"
