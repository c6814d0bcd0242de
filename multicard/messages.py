"""Messages and refusals, each with a code, and how a command prints them.

A message is a sentence that stands next to the code that prints it. Programs, such as tests and
scripts, read its code, its key and its facts instead. With MULTICARD_MESSAGES=codes, each message
is printed as `[[code key="..." fact=...]]` in place of its sentence. So a sentence can be improved
without any other change.
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
# One message that is printed as its code.
CODED = re.compile(r"\[\[[a-z0-9-]+\.[a-z0-9.-]+(?: (?:(?!\]\]).)*)?\]\]", re.DOTALL)
# Colors and links of terminals, which libraries write into their errors: sequences of ECMA-48 (CSI
# and OSC).
ESCAPES = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
# Characters that a terminal obeys in place of showing them: control characters except tab and line
# break, and those that change the direction of the text that follows.
OBEYED_BY_TERMINALS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
SURROGATES = re.compile("[\ud800-\udfff]")  # Valid UTF-8 has none of them.
FIRST_SURROGATE_OF_BYTES = 0xDC00  # Python reads byte 0xE9 of a name that is not UTF-8 as U+DCE9.
UNCODED = "other"  # The code of texts by libraries and the system.
PAGE = re.compile(r"\bdocs/((?:\w+/)?\w+\.md)")
# The text of a traceback hands over a message by a last line that begins so.
NOTE_PREFIX = "in parts: "

INSTALLED = {
    "-m analysis": "multicard",
    "-m multicard": "multicard",
    "train_vision.py": "multicard vision",
    "tune_llm.py": "multicard tune",
    "measure_script.py": "multicard script",
}


class Message(str):
    """A sentence with its code, the key that it is about, and its facts.

    It is a string, and can be printed, joined and written like any other. A remedy that can be
    pasted, which is an override or a command, stands in backticks in the sentence. So it can be
    read as data too (`remedies`).

    Args:
        code: Names the message, in lower case, such as "split.range". Each code stands in one
            place of the source.
        sentence: The text that a person reads.
        key: The key of the configuration, or the flag, that has to change.
        facts: The values in the sentence, by name.

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
        message = super().__new__(cls, _in_codes(code, key, facts) if BY_CODE else sentence)
        message.code = code
        message.sentence = sentence
        message.key = key
        message.facts = facts
        return message

    @property
    def remedies(self) -> list[str]:
        """The overrides and commands that the sentence offers, ready to be pasted."""
        quoted_remedy = self.facts.get("remedy")  # It may hold a backtick, from a file's name.
        if isinstance(quoted_remedy, str) and f"`{quoted_remedy}`" in self.sentence:
            return [quoted_remedy, *REMEDY.findall(self.sentence.replace(f"`{quoted_remedy}`", ""))]
        return REMEDY.findall(self.sentence)

    @property
    def parts(self) -> dict[str, Any]:
        """The message as JSON-ready values, from which another process can rebuild it by `of`."""
        facts = json.loads(json.dumps(dict(self.facts), default=str))
        return {"code": self.code, "sentence": str(self.sentence), "key": self.key, "facts": facts}

    @classmethod
    def of(cls, parts: Mapping[str, Any]) -> "Message":
        """Rebuild the message that had these `parts`."""
        return cls(parts["code"], parts["sentence"], key=parts["key"], **parts["facts"])

    def __reduce__(self) -> Any:
        return _message, (self.code, str(self.sentence), self.key, dict(self.facts))


def _message(code: str, sentence: str, key: str | None, facts: dict[str, Any]) -> Message:
    return Message(code, sentence, key=key, **facts)


def _in_codes(code: str, key: str | None, facts: Mapping[str, Any]) -> str:
    values = facts if key is None else {"key": key, **facts}
    words = [code]
    for name, value in values.items():
        words.append(f"{name}={_value(value)}")
    return f"[[{' '.join(words)}]]"


def _value(value: Any) -> str:
    """Return a fact as JSON. A message inside another one is printed as itself, even if it was
    read from a file.
    """
    if isinstance(value, Message) or (isinstance(value, str) and CODED.fullmatch(value)):
        return str(value)
    return json.dumps(_rounded(value), default=str)


def _rounded(value: Any) -> Any:
    """Round the numbers in a fact to six digits, because machines differ in the last ones, and
    sort its sets.
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


class Refusal(ValueError):  # noqa: N818 - users read this word
    """An error that a user can fix, reported in one line.

    Its text is a `Message`, and it takes the arguments of a message.
    """

    def __init__(self, code: str, sentence: str, *, key: str | None = None, **facts: Any) -> None:
        self.message = Message(code, in_one_line(sentence), key=key, **facts)
        super().__init__(self.message)

    @classmethod
    def of(cls, message: Message) -> "Refusal":
        """Make a refusal of a message that was made elsewhere."""
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
        """Append the message in parts to the text of this refusal's traceback.

        Sometimes only that text is passed on, as from a worker of torch's DataLoader.
        """
        self.add_note(f"{NOTE_PREFIX}{json.dumps(self.message.parts)}")

    @classmethod
    def noted(cls, traceback: str) -> "Refusal | None":
        """Return the refusal at the end of a traceback's text, if `note` was called for it."""
        last_line = traceback.rstrip().rpartition("\n")[2]
        return (
            cls.of(Message.of(json.loads(last_line.removeprefix(NOTE_PREFIX))))
            if last_line.startswith(NOTE_PREFIX)
            else None
        )

    def reworded(self, sentence: str, key: str | None) -> "Refusal":
        """Return the same refusal in other words.

        A command's option is called differently from the argument in Python that does the same.
        """
        return _refusal(self.code, sentence, key, dict(self.facts))

    def __reduce__(self) -> Any:
        return _refusal, self.message.__reduce__()[1]


def _refusal(code: str, sentence: str, key: str | None, facts: dict[str, Any]) -> Refusal:
    return Refusal(code, sentence, key=key, **facts)


def in_one_line(sentence: str) -> str:
    r"""Escape the line breaks in a sentence as `\n`. Names in it may contain some."""
    return LINE_BREAK.sub(lambda found: found[0].encode("unicode_escape").decode(), sentence)


def printable(text: str) -> str:
    r"""Remove a terminal's colors from a text, and escape other control characters as `\x00`.

    The names of files, columns and classes, and the errors of libraries, may contain any character,
    and a terminal would obey it.
    """
    text = as_text(ESCAPES.sub("", text))
    return OBEYED_BY_TERMINALS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def as_text(name: str) -> str:
    r"""Return a name of any bytes, such as a file's, as text of UTF-8. Byte E9 becomes `\xe9`.

    One half of a surrogate pair, which JSON can contain, becomes `\ud83d`. Python itself represents
    such bytes by surrogates. Printing them fails, and strict readers of JSON do not accept them.
    """
    return SURROGATES.sub(_escaped, name) if not name.isascii() else name


def _escaped(surrogate: re.Match[str]) -> str:
    number = ord(surrogate[0])
    is_byte = FIRST_SURROGATE_OF_BYTES + 0x80 <= number <= FIRST_SURROGATE_OF_BYTES + 0xFF
    return f"\\x{number - FIRST_SURROGATE_OF_BYTES:02x}" if is_byte else f"\\u{number:04x}"


def code_of(text: str) -> str:
    """Return the code of a message, or "other" for any other text."""
    return text.code if isinstance(text, Message) else UNCODED


def in_checkout() -> bool:
    """Return True if `python train_vision.py` and `python -m analysis` would run multicard here."""
    return Path.cwd() == ROOT


def typed(entry: str) -> str:
    """Return the beginning of a command that works in this folder, in the form of the running one.

    It is "multicard vision" if multicard is installed, and "python train_vision.py" in the
    checkout. Elsewhere, `python -m analysis` may be a package of the user.
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
    """Return the installed command as it can be typed again.

    It is the command's name, or its path if the shell does not find the name, as in a virtual
    environment that is not activated.
    """
    command_path = shutil.which("multicard")
    if not Path(started).is_file() or (
        command_path is not None and Path(command_path).samefile(started)
    ):
        return "multicard"
    return shlex.quote(started)


def install(extra: str) -> str:
    """Return the command that installs an extra of multicard, such as "trl"."""
    if IS_INSTALLED:
        return f"pip install 'multicard[{extra}]'"
    folder = "." if in_checkout() else str(ROOT)
    return f"pip install -e {shlex.quote(f'{folder}[{extra}]')}"


def page(name: str) -> str:
    """Return where a page of the documentation is, such as "own.md".

    It is in docs/ of the checkout or of the wheel.
    """
    return str(ROOT / "docs" / name) if IS_INSTALLED else f"docs/{name}"


def usage(docstring: str | None, file: str) -> str:
    """Return the text that `--help` prints: a module's docstring, with commands that work here.

    If Python's -OO removed the docstring, it is read from the module's `file`.
    """
    text = docstring or ast.get_docstring(ast.parse(Path(file).read_text()), clean=False) or ""
    for entry in INSTALLED:
        text = text.replace(f"python {entry} ", f"{typed(entry)} ")
    return PAGE.sub(lambda found: page(found[1]), text)


def say(line: "str | Text", error: bool = False) -> None:
    """Print a line.

    If it cannot be written now (a full disk), the stream tries again with the next line. If nobody
    reads any more (`| head`), further lines are dropped. In both cases the measurement goes on.
    """
    stream = sys.stderr if error else sys.stdout
    try:
        print(line if isinstance(line, str) else _styled(line, stream), file=stream, flush=True)
    except BrokenPipeError:
        drop(stream)
    except OSError:
        return  # The stream keeps the line.


def drop(stream: TextIO) -> None:
    """Discard everything that is still written to a stream whose reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def link(path: Path) -> "Text":
    """Return a path as it can be typed here. In terminals with links, it opens the folder."""
    from rich.text import Text

    absolute_path = path.absolute()
    shown_path = (
        absolute_path.relative_to(Path.cwd())
        if absolute_path.is_relative_to(Path.cwd())
        else absolute_path
    )
    return Text(f"{shown_path}/", f"link {absolute_path.as_uri()}")


def _styled(line: "Text", stream: TextIO) -> str:
    """Render the line with the colors and links that this terminal shows.

    A file or a dumb terminal shows none, and there are no colors if NO_COLOR is set.
    """
    from rich.console import Console

    console = Console(file=stream)
    with console.capture() as captured:
        console.print(line, soft_wrap=True, end="")
    return captured.get()


class Parser(argparse.ArgumentParser):
    """Refuses bad arguments in one line."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong with the arguments, and end the program.

        Args:
            message: argparse's own words, or "argument FLAG: " and the message of a `type`
                function on the value.
        """
        word = re.split("[ =]", message.removeprefix("unrecognized arguments: "))[0]
        similar_flags = difflib.get_close_matches(
            word, self._option_string_actions, n=1, cutoff=0.65
        )
        question = f"; did you mean `{similar_flags[0]}`?" if similar_flags else ""
        say(
            Message(
                "command.bad-argument",
                f"refused: {message}{question}",
                key=flag_of(message),
                reason=_message_of_type_function() or message,
                near=similar_flags,
            ),
            error=True,
        )
        sys.exit(1)


def flag_of(message: str) -> str | None:
    """Return the flag that argparse complains of, such as "--goal" in "argument --goal: ..."."""
    flag = FLAG.search(message)
    return flag[0] if flag else None


def _message_of_type_function() -> Message | None:
    """Return the message of the `type` function whose refusal argparse is reporting.

    argparse itself would only pass on its text.
    """
    error = sys.exc_info()[1]
    cause = error.__context__ if isinstance(error, argparse.ArgumentError) else None
    argument = cause.args[0] if isinstance(cause, argparse.ArgumentTypeError) else None
    return argument if isinstance(argument, Message) else None
