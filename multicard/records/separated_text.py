"""Decodes tables of text, and finds the delimiter of their cells.

Excel writes UTF-8 with a byte order mark, UTF-16 ("Unicode text"), or the system's code page, and
may begin the file with a line `sep=;`.
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
HANZI = re.compile("[\u2010-\u2026\u3000-\u303f\u4e00-\u9fff\uff00-\uffef]")
# Code pages of Windows by script: iconv's name, Python's, letters of the script, and their least
# share in the characters beyond ASCII. GB18030 also decodes most Japanese and Korean text, so it
# comes after them.
CODE_PAGES = (
    ("CP932", "cp932", re.compile("[\u3041-\u3096]"), 0.2),
    ("CP949", "cp949", re.compile("[\uac00-\ud7a3]"), 0.9),
    ("GB18030", "gb18030", HANZI, 0.9),
    ("BIG5", "cp950", HANZI, 0.9),
    ("WINDOWS-1251", "cp1251", re.compile("[\u0401\u0410-\u044f\u0451]"), 0.9),
)
BEYOND_ASCII = re.compile(b"[\x80-\xff]+")
# Accented letters mostly stand alone. From this share on, the script is Latin.
LONE_LETTERS = 0.6
# The line that tells Excel the delimiter.
DELIMITER_LINE = re.compile(r"\A\s*\"?sep=([^\w\s\"]|\t)\"?[ ]*(?:\r\n|\n|\r)", re.IGNORECASE)


class SeparatedText(NamedTuple):
    """The text of a table.

    lines_before: number of lines of the file that precede `text`.
    delimiter: the delimiter that the file names, or else the most frequent one in its header.
    """

    text: str
    delimiter: str
    lines_before: int


def separated_text(content: bytes) -> SeparatedText:
    """Decode a table by its byte order mark, or else as UTF-8.

    Raises:
        Refusal: the encoding cannot be determined.
    """
    text = decoded(content)
    declaration = DELIMITER_LINE.match(text)
    if declaration is not None:
        return SeparatedText(text[declaration.end() :], declaration[1], declaration[0].count("\n"))
    header = text.lstrip().partition("\n")[0]
    return SeparatedText(text, max(DELIMITERS, key=header.count), 0)


def decoded(content: bytes) -> str:
    """Decode bytes by their byte order mark, or else as UTF-8; refuse as `separated_text` does."""
    encoding = next((name for mark, name in MARKS if content.startswith(mark)), "utf-8")
    place = content.find(b"\0") if encoding.startswith("utf-8") else -1
    if place < 0:
        try:
            return content.decode(encoding)
        except UnicodeDecodeError as error:
            place = error.start
    likely_encoding = _likely_encoding(content)
    line = content[:place].count(b"\n") + 1
    if likely_encoding is None:
        raise Refusal(
            "table.nul",
            f"line {line} has a NUL byte, which never occurs in text; write the file again",
            line=line,
        )
    raise Refusal(
        "table.encoding",
        f"line {line} is not in UTF-8; save it as UTF-8 (Excel: CSV UTF-8), or write a copy by "
        f"`iconv -f {likely_encoding} -t UTF-8 -o COPY FILE` if that is its encoding",
        line=line,
        likely=likely_encoding,
    )


def _likely_encoding(content: bytes) -> str | None:
    """Guess the encoding of content without a mark, by iconv's name; None if it is not text.

    The guess is only suggested to the user: code pages of one script cannot be distinguished.
    """
    if b"\0" not in content:
        return _likely_code_page(content)
    if content.startswith(b"\0"):
        return "UTF-16BE"
    return "UTF-16LE" if content[1:2] == b"\0" else None


def _likely_code_page(content: bytes) -> str:
    """Guess the code page of Windows. It is Western Europe's unless another script is found."""
    runs = BEYOND_ASCII.findall(content)
    lone = sum(len(run) == 1 for run in runs)
    if lone > LONE_LETTERS * sum(map(len, runs)):
        return "WINDOWS-1252"
    for name, codec, letters, least in CODE_PAGES:
        try:
            text = content.decode(codec)
        except UnicodeDecodeError:
            continue
        foreign = sum(not character.isascii() for character in text)
        if len(letters.findall(text)) >= least * foreign:
            return name
    return "WINDOWS-1252"


def line_above(path: Path, names: Sequence[str], delimiter: str) -> str:
    """The command that writes a line with the names of the columns above the rows of a table."""
    script = shlex.quote(f"1i {delimiter.join(names)}".replace("\t", "\\t"))
    return f"sed -i {script} {shlex.quote(str(path))}"
