"""What tables of text share, whoever reads them: their encoding, and the delimiter of their cells.

Excel writes UTF-8 with a mark, UTF-16 ("Unicode text"), the system's own code page,
and a first line `sep=;`.
"""

import codecs
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from multicard.messages import Refusal

DELIMITERS = ",;\t|"
MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# The line by which Excel is told the delimiter
TOLD = re.compile(r"\A\s*\"?sep=([^\w\s\"]|\t)\"?[ ]*(?:\r\n|\n|\r)", re.IGNORECASE)


class SeparatedText(NamedTuple):
    """The text of a table.

    lines_before: of the file, that are no part of `text`. delimiter: that the file names,
    or its header has most often.
    """

    text: str
    delimiter: str
    lines_before: int


def separated_text(content: bytes) -> SeparatedText:
    """The text of a table, by its mark, else as UTF-8.

    Raises:
        Refusal: the encoding cannot be told.
    """
    text = decoded(content)
    told = TOLD.match(text)
    if told is not None:
        return SeparatedText(text[told.end() :], told[1], told[0].count("\n"))
    header = text.lstrip().partition("\n")[0]
    return SeparatedText(text, max(DELIMITERS, key=header.count), 0)


def decoded(content: bytes) -> str:
    """The text of bytes, by their mark, else as UTF-8; refused as `separated_text` says."""
    encoding = next((name for mark, name in MARKS if content.startswith(mark)), "utf-8")
    place = content.find(b"\0") if encoding.startswith("utf-8") else -1
    if place < 0:
        try:
            return content.decode(encoding)
        except UnicodeDecodeError as error:
            place = error.start
    likely = _likely(content)
    line = content[:place].count(b"\n") + 1
    if likely is None:
        raise Refusal(
            "table.nul",
            f"line {line} has a NUL byte, which no text has; write the file again",
            line=line,
        )
    raise Refusal(
        "table.encoding",
        f"line {line} is not in UTF-8; save it as UTF-8 (Excel: CSV UTF-8), or write a copy by "
        f"`iconv -f {likely} -t UTF-8 -o COPY FILE` if that is its encoding",
        line=line,
        likely=likely,
    )


def _likely(content: bytes) -> str | None:
    """The encoding that content without a mark probably has, as iconv calls it; None of what is no
    text. It is offered
    and not taken: code pages of Windows have no sign of their own.
    """
    if b"\0" not in content:
        return "WINDOWS-1252"
    if content.startswith(b"\0"):
        return "UTF-16BE"
    return "UTF-16LE" if content[1:2] == b"\0" else None


def line_above(path: Path, names: Sequence[str], delimiter: str) -> str:
    """The command that writes a line with the names of the columns above the rows of a table."""
    script = shlex.quote(f"1i {delimiter.join(names)}".replace("\t", "\\t"))
    return f"sed -i {script} {shlex.quote(str(path))}"
