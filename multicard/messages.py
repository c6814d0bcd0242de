"""What a program says to a person: messages and refusals, each with a code;
and how a command prints them at once.

A message is a sentence that stands beside the code that says it. Whoever reads it as a program
(tests, scripts) reads its code, its key and its facts: with MULTICARD_MESSAGES=codes each message
is printed as `[[code key="..." fact=...]]` in place of its sentence, so that a sentence can be
improved without anything else changing.
"""

import argparse
import ast
import difflib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from multicard.repository import IS_INSTALLED, PACKAGES, ROOT

if TYPE_CHECKING:
    from rich.text import Text

BY_CODE = os.environ.get("MULTICARD_MESSAGES") == "codes"
REMEDY = re.compile(r"`([^`]+)`")
FLAG = re.compile(r"(?<!\S)--?[a-zA-Z][\w-]*")
LINE_BREAK = re.compile(r"[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
# one message by its code
CODED = re.compile(r"\[\[[a-z0-9-]+\.[a-z0-9.-]+(?: (?:(?!\]\]).)*)?\]\]", re.DOTALL)
# Colours and links of terminals, which libraries write into
# their errors: sequences of ECMA-48 (CSI and OSC)
ESCAPES = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
# Letters that a terminal obeys in place of showing them: control characters but tab and line break,
# and those that turn the direction of what follows
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
SURROGATES = re.compile("[\ud800-\udfff]")  # no text of UTF-8 has them
BYTES_FROM = 0xDC00  # Python has byte 0xE9 of a name that is not UTF-8 as U+DCE9
UNCODED = "other"  # the code of what libraries and the system say
PAGE = re.compile(r"\bdocs/(\w+\.md)")
NOTE = "in parts: "  # begins the line by which the text of a traceback brings a message

INSTALLED = {
    "-m analysis": "multicard",
    "-m multicard": "multicard",
    "train_vision.py": "multicard vision",
    "tune_llm.py": "multicard tune",
    "measure_script.py": "multicard script",
}


class Message(str):
    """A sentence with its code, the key that it is about and its facts.

    It is a string: it can be printed, joined and written as any other. What can be pasted as a
    remedy, an override or a command, stands in backticks in the sentence,
    and so is data too (`remedies`).

    Args:
        code: what is said, in lower case: "split.range". Each code stands at one place in the
            source.
        sentence: what a person reads.
        key: the key of the configuration, or the flag, that has to change.
        facts: the values in the sentence, by name.

    Example:
        Message("split.range", f"dataset.split={split}: give a share in (0, 1), as
        `dataset.split=0.2`",
                key="dataset.split", value=split)
    """

    code: str
    sentence: str
    key: str | None
    facts: Mapping[str, Any]

    def __new__(
        cls, code: str, sentence: str, *, key: str | None = None, **facts: Any
    ) -> "Message":
        sentence = printable(sentence)
        made = super().__new__(cls, _in_codes(code, key, facts) if BY_CODE else sentence)
        made.code = code
        made.sentence = sentence
        made.key = key
        made.facts = facts
        return made

    @property
    def remedies(self) -> list[str]:
        """The overrides and commands that the sentence offers, as they are pasted."""
        own = self.facts.get("remedy")  # which may hold a backtick, of a name of a file
        if isinstance(own, str) and f"`{own}`" in self.sentence:
            return [own, *REMEDY.findall(self.sentence.replace(f"`{own}`", ""))]
        return REMEDY.findall(self.sentence)

    @property
    def parts(self) -> dict[str, Any]:
        """The message as JSON-ready values, from which another process makes it again (`of`)."""
        facts = json.loads(json.dumps(dict(self.facts), default=str))
        return {"code": self.code, "sentence": str(self.sentence), "key": self.key, "facts": facts}

    @classmethod
    def of(cls, parts: Mapping[str, Any]) -> "Message":
        """The message that had these `parts`."""
        return cls(parts["code"], parts["sentence"], key=parts["key"], **parts["facts"])

    def __reduce__(self) -> Any:
        return _message, (self.code, str(self.sentence), self.key, dict(self.facts))


def _message(code: str, sentence: str, key: str | None, facts: dict[str, Any]) -> Message:
    return Message(code, sentence, key=key, **facts)


def _in_codes(code: str, key: str | None, facts: Mapping[str, Any]) -> str:
    named = facts if key is None else {"key": key, **facts}
    return f"[[{' '.join([code, *(f'{name}={_value(value)}' for name, value in named.items())])}]]"


def _value(value: Any) -> str:
    """A fact as JSON; a message within another as itself, also one that was read from a file."""
    if isinstance(value, Message) or (isinstance(value, str) and CODED.fullmatch(value)):
        return str(value)
    return json.dumps(_rounded(value), default=str)


def _rounded(value: Any) -> Any:
    """A fact with six digits of each number, as machines differ in the last,
    and sets in their order.
    """
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {str(name): _rounded(inner) for name, inner in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, list | tuple):
        return [_rounded(inner) for inner in value]
    return value


class Refusal(ValueError):  # noqa: N818 (the word that users read)
    """What a user can mend, refused in one line. Its text is a `Message`;
    the arguments are those of a message.
    """

    def __init__(self, code: str, sentence: str, *, key: str | None = None, **facts: Any) -> None:
        self.message = Message(code, in_one_line(sentence), key=key, **facts)
        super().__init__(self.message)

    @classmethod
    def of(cls, message: Message) -> "Refusal":
        """The refusal with a message that was made elsewhere."""
        return _refusal(message.code, message.sentence, message.key, dict(message.facts))

    @property
    def code(self) -> str:
        return self.message.code

    @property
    def key(self) -> str | None:
        return self.message.key

    @property
    def facts(self) -> Mapping[str, Any]:
        return self.message.facts

    def __str__(self) -> str:
        return self.message

    def note(self) -> None:
        """End the text of this refusal's traceback with its message in parts, for where no more
        than that text passes: from a worker of torch's DataLoader.
        """
        self.add_note(f"{NOTE}{json.dumps(self.message.parts)}")

    @classmethod
    def noted(cls, traceback: str) -> "Refusal | None":
        """The refusal that the text of a traceback ends with, where it was noted (`note`)."""
        last = traceback.rstrip().rpartition("\n")[2]
        return (
            cls.of(Message.of(json.loads(last.removeprefix(NOTE))))
            if last.startswith(NOTE)
            else None
        )

    def reworded(self, sentence: str, key: str | None) -> "Refusal":
        """The same refusal in other words: of a command's option,
        as of the argument of Python that does the same.
        """
        return _refusal(self.code, sentence, key, dict(self.facts))

    def __reduce__(self) -> Any:
        return _refusal, self.message.__reduce__()[1]


def _refusal(code: str, sentence: str, key: str | None, facts: dict[str, Any]) -> Refusal:
    return Refusal(code, sentence, key=key, **facts)


def in_one_line(sentence: str) -> str:
    r"""A sentence with the line breaks of names in it, as of folders, as escapes: `\n`."""
    return LINE_BREAK.sub(lambda found: found[0].encode("unicode_escape").decode(), sentence)


def printable(text: str) -> str:
    r"""A text without a terminal's colours, its other control characters as escapes: `\x00`.

    Names of files, columns and classes, and the errors of libraries hold any letter, and a
    terminal would obey it.
    """
    text = as_text(ESCAPES.sub("", text))
    return OBEYED.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def as_text(name: str) -> str:
    r"""A name of any bytes, as of a file, as text of UTF-8: byte E9 of Latin-1 becomes `\xe9`.

    Half of a character, which JSON can hold, becomes `\ud83d`. Whoever prints or writes the
    surrogates of Python's own form fails, or writes what no strict reader of JSON takes.
    """
    return SURROGATES.sub(_escaped, name) if not name.isascii() else name


def _escaped(surrogate: re.Match[str]) -> str:
    number = ord(surrogate[0])
    is_byte = BYTES_FROM + 0x80 <= number <= BYTES_FROM + 0xFF
    return f"\\x{number - BYTES_FROM:02x}" if is_byte else f"\\u{number:04x}"


def code_of(text: str) -> str:
    """The code of a message; that of any other text is "other"."""
    return text.code if isinstance(text, Message) else UNCODED


def in_checkout() -> bool:
    """True where `python train_vision.py` and `python -m analysis` are multicard's."""
    return Path.cwd() == ROOT


def typed(entry: str) -> str:
    """The beginning of a command that works in this folder, as this one began: "multicard vision"
    if it is installed, "python train_vision.py" in the checkout.
    Elsewhere `python -m analysis` may be a package of the user's.
    """
    started = Path(sys.argv[0])
    installed = INSTALLED[entry]
    if started.name == "multicard":
        return installed.replace("multicard", console_script(sys.argv[0]), 1)
    if started.parts[-2:] == ("multicard", "__main__.py"):
        return f"python -m {installed}"
    if in_checkout():
        return f"python {entry}"
    if shutil.which("multicard") is not None:
        return installed
    if (ROOT / entry).is_file():
        return f"python {shlex.quote(str(ROOT / entry))}"
    return f"PYTHONPATH={shlex.quote(str(PACKAGES))} python -m {installed}"


def console_script(started: str) -> str:
    """The installed command as it can be typed again: its name, or its path if the shell does not
    find it by its name, as in a virtual environment that is not activated."""
    found = shutil.which("multicard")
    if not Path(started).is_file() or (found is not None and Path(found).samefile(started)):
        return "multicard"
    return shlex.quote(started)


def install(extra: str) -> str:
    """The command that installs an extra of multicard ("trl") beside it."""
    if IS_INSTALLED:
        return f"pip install 'multicard[{extra}]'"
    folder = "." if in_checkout() else str(ROOT)
    return f"pip install -e {shlex.quote(f'{folder}[{extra}]')}"


def page(name: str) -> str:
    """Where a page of the documentation is ("own.md"): in the checkout's docs/,
    or in the wheel's.
    """
    return str(ROOT / "docs" / name) if IS_INSTALLED else f"docs/{name}"


def usage(docstring: str | None, file: str) -> str:
    """The text that `--help` prints: a module's docstring,
    with commands that work where it is read.

    The docstring is read from the module's `file` if Python's -OO left it out.
    """
    text = docstring or ast.get_docstring(ast.parse(Path(file).read_text()), clean=False) or ""
    for entry in INSTALLED:
        text = text.replace(f"python {entry} ", f"{typed(entry)} ")
    return PAGE.sub(lambda found: page(found[1]), text)


def say(line: "str | Text", error: bool = False) -> None:
    """Print a line. Where it cannot be written now (a full disk), it is tried again with the next;
    where nobody reads any more (`| head`), further ones are
    dropped: what is being measured goes on.
    """
    stream = sys.stderr if error else sys.stdout
    try:
        print(line if isinstance(line, str) else _styled(line, stream), file=stream, flush=True)
    except BrokenPipeError:
        drop(stream)
    except OSError:
        return  # the stream keeps the line


def drop(stream: TextIO) -> None:
    """Discard what is still written to a stream whose reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def link(path: Path) -> "Text":
    """The path as it can be typed here; it opens where the terminal has links."""
    from rich.text import Text

    full = path.absolute()
    short = full.relative_to(Path.cwd()) if full.is_relative_to(Path.cwd()) else full
    return Text(f"{short}/", f"link {full.as_uri()}")


def _styled(line: "Text", stream: TextIO) -> str:
    """The line with what this terminal shows of its colours and links: nothing in a file or a dumb
    terminal, no colours where NO_COLOR is set.
    """
    from rich.console import Console

    console = Console(file=stream)
    with console.capture() as captured:
        console.print(line, soft_wrap=True, end="")
    return captured.get()


class Parser(argparse.ArgumentParser):
    """Refuses bad arguments in one line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the arguments, and end the program.

        Args:
            message: argparse's own words, or "argument FLAG: "
                and what a `type` function says of the value.
        """
        word = re.split("[ =]", message.removeprefix("unrecognized arguments: "))[0]
        near = difflib.get_close_matches(word, self._option_string_actions, n=1, cutoff=0.65)
        question = f"; did you mean `{near[0]}`?" if near else ""
        say(
            Message(
                "command.bad-argument",
                f"refused: {message}{question}",
                key=flag_of(message),
                reason=_said_by_type() or message,
                near=near,
            ),
            error=True,
        )
        sys.exit(1)


def flag_of(message: str) -> str | None:
    """The flag that argparse complains of: "--goal" of "argument --goal: expected one argument"."""
    found = FLAG.search(message)
    return found[0] if found else None


def _said_by_type() -> Message | None:
    """The message of the `type` function whose refusal argparse is passing on;
    it would pass on the text alone.
    """
    error = sys.exc_info()[1]
    cause = error.__context__ if isinstance(error, argparse.ArgumentError) else None
    said = cause.args[0] if isinstance(cause, argparse.ArgumentTypeError) else None
    return said if isinstance(said, Message) else None
