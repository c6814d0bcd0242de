"""The names of columns in public data, and an account of the columns of each row.

Each column is read, ignored and counted, or refused because its form gives it a meaning that the
run would lose.
"""

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from multicard.config import pasting
from multicard.messages import Refusal

KEY = "dataset.columns"

# The groups below list columns by their meaning, in the order in which they are looked for. Case
# does not matter. In rows with a question and its answer, LISTS may name other lists.
LISTS = ("dialog", "turns", "items", "data")
# In public forms, these columns hold turns without speakers, alternately of the user and the
# assistant: LIMA, DailyDialog, UltraChat. MT-Bench's `turns` only hold questions.
BY_PLACE = ("messages", "conversations", "conversation", "dialog", "data")
# `contents` is Gemini's.
CONVERSATION = ("messages", "conversations", "conversation", "contents", *LISTS)
SYSTEM = ("system", "system_prompt", "system_message", "systeminstruction", "system_instruction")
TOOLS = ("tools", "functions")
QUESTION = ("instruction", "prompt", "question", "query", "problem")
CONTEXT = ("input", "context")
ANSWER = ("output", "completion", "response", "answer", "solution")
CHOSEN = ("chosen", "chosen_response", "preferred_output")  # The last is OpenAI's.
# The last is ms-swift's.
REJECTED = ("rejected", "rejected_response", "non_preferred_output", "rejected_messages")
HISTORY = (  # `chat_history` is Cohere's.
    "history",
    "chat_history",
    "conversation_history",
    "dialog_history",
    "dialogue_history",
    "message_history",
)
TEXT = ("text",)
SEGMENTS = ("segments",)
DIALOGUE = ("dialogue", "summary")  # The template `summarize` reads them.
READ = (
    *CONVERSATION,
    *SYSTEM,
    *TOOLS,
    *QUESTION,
    *CONTEXT,
    *ANSWER,
    *CHOSEN,
    *REJECTED,
    *HISTORY,
    *TEXT,
    *SEGMENTS,
)
WANTED = "wanted"  # Says whether an answer is to be learnt, as KTO's `label` does.
NAMED = (*READ, *DIALOGUE, "split", WANTED)  # The names that `dataset.columns` accepts.

# Columns that list the possible answers to a multiple-choice question.
CHOICES = (
    "choices",
    "options",
    "answer_choices",
    "answer_options",
    "alternatives",
    "candidates",
    "endings",
    "possible_answers",
)

# These columns change the text or which part of it is learnt. A reader that cannot take them into
# account refuses them.
MEDIA = ("image", "images", "video", "videos", "audio", "audios")
REASONING = ("reasoning", "reasoning_content", "thinking", "think", "thought", "thoughts")
REASONING += ("cot", "complex_cot", "chain_of_thought")  # The second is medical-o1-reasoning-SFT's.
OF_TEMPLATES = ("documents", "chat_template_kwargs")
BEARING = (*SYSTEM, *TOOLS, *HISTORY, *MEDIA, *REASONING, *OF_TEMPLATES)


# Programs write these words for a missing value: Python's csv and f-strings, pandas, SQL exports.
MISSING_WORDS = ("nan", "NaN", "None", "null", "NULL", "<NA>", "NaT")

UNNAMED = "a column without a name"  # pandas writes its index as such a column.


def is_filled(value: Any) -> bool:
    """Return False for null, and for an empty text, list or object."""
    return not (value is None or (isinstance(value, str | list | dict) and len(value) == 0))


def is_missing_word(value: Any) -> TypeGuard[str]:
    """Tell whether a value is a word that programs write for a missing value."""
    return isinstance(value, str) and value.strip() in MISSING_WORDS


def override(renamed: Mapping[str, str | None]) -> str:
    """Return the override of a command that names columns.

    Example: `'dataset.columns={instruction: question}'`.
    """
    return pasting.override(KEY, renamed)


class RowColumns:
    """A row, or a message, that keeps account of which of its columns were read.

    Args:
        row: the values by the names that the file uses; kept as `row`.
        named: `dataset.columns`: maps our name of a column to the file's, or to None if the column
            is to be left out.
    """

    def __init__(
        self, row: Mapping[str, Any], named: Mapping[str, str | None] | None = None
    ) -> None:
        named = named or {}
        used_by_file = {file_name for file_name in named.values() if file_name is not None}
        self.named = frozenset(
            our_name for our_name, file_name in named.items() if file_name is not None
        )
        self._values = {
            name: value
            for name, value in row.items()
            if name not in named and name not in used_by_file
        }
        self._dropped = [name for name in row if name in named and name not in used_by_file]
        for our_name, file_name in named.items():
            if file_name is not None and file_name in row:
                self._values[our_name] = row[file_name]
        self._file_names = {
            our_name: file_name for our_name, file_name in named.items() if file_name is not None
        }
        self._names_by_lower = {name.lower().strip(): name for name in reversed(self._values)}
        self._unread = {name for name, value in self._values.items() if is_filled(value)}
        self.row = row

    def filled(self, names: Sequence[str]) -> list[str]:
        """Return the names under which the row holds a value.

        If the command named columns of this meaning, only these are returned.
        """
        filled_names = [
            name
            for name in names
            if name in self._names_by_lower and is_filled(self._values[self._names_by_lower[name]])
        ]
        return [name for name in filled_names if name in self.named] or filled_names

    def get(self, *names: str) -> Any:
        """Return the value of the first of the names that holds one, else None.

        The column counts as read.
        """
        for name in self.filled(names):
            own_name = self._names_by_lower[name]
            self._unread.discard(own_name)
            return self._values[own_name]
        return None

    def peek(self, name: str) -> Any:
        """Return the value of a column that `filled` found, without counting it as read."""
        return self._values[self._names_by_lower[name]]

    def replace(self, name: str, value: Any) -> None:
        """Replace the value of a column that `filled` found, for instance by its decoded form.

        It does not count as read.
        """
        self._values[self._names_by_lower[name]] = value

    def lower_names(self) -> list[str]:
        """Return all names in use, in lower case."""
        return [*reversed(self._names_by_lower)]

    def present(self, names: Sequence[str]) -> list[str]:
        """Return the names that the row has, even if their values are empty."""
        return [name for name in names if name in self._names_by_lower]

    def values(self) -> dict[str, Any]:
        """Return the row's values by the names in use: ours, or else the file's."""
        return dict(self._values)

    def file_name(self, name: str) -> str:
        """Return the file's name of a column, given our name or the file's in any case."""
        return self._file_names.get(name, self._names_by_lower.get(name, name))

    def all(self) -> list[str]:
        """Return all columns by the names that the file uses."""
        return list(self.row)

    def pass_over(self, *names: str) -> None:
        """Count columns as read, because other columns say the same."""
        self._unread -= {
            self._names_by_lower[name] for name in names if name in self._names_by_lower
        }

    def unread(self) -> list[str]:
        """Return the columns with a value that were not read, by the names that the file uses."""
        unread_names = [
            self._file_names.get(name, name) for name in self._values if name in self._unread
        ]
        return unread_names + [name for name in self._dropped if is_filled(self.row[name])]

    def filled_unread(self, names: Sequence[str]) -> list[str]:
        """Return the names under which the row holds a value that was not read."""
        return [name for name in self.filled(names) if self._names_by_lower[name] in self._unread]

    def missing_words(self) -> dict[str, str]:
        """Return the read columns whose text is a word for a missing value, with the word."""
        return {
            self._file_names.get(name, name): value.strip()
            for name, value in self._values.items()
            if name not in self._unread and is_missing_word(value)
        }

    def unread_with_meaning(self, names: Sequence[str] = BEARING) -> str | None:
        """Return the first unread column whose name gives it a meaning, or None."""
        for name in self._values:
            if name in self._unread and name.lower().strip() in names:
                return name
        return None


class Unread(Counter[str]):
    """The record's `ignored`: the number of rows in which a column's value was not read.

    The keys are columns, or "column.key" for messages.
    """

    def add(self, columns: RowColumns, messages: Sequence[str] = ()) -> None:
        """Count the columns of a row that its reader did not read."""
        column_names = [name if name.strip() else UNNAMED for name in columns.unread()]
        self.update([*column_names, *sorted(set(messages))])


# ---- `dataset.columns`


def check_named(named: Mapping[str, str | None], where: str, rows: Sequence[Any]) -> None:
    """Refuse entries of `dataset.columns` that have no meaning here, or that no row has.

    Args:
        where: the key and value that name the data, for the message.
    """
    names = []
    for row in rows:
        if isinstance(row, dict):
            names.extend(row)
    row_columns = list(dict.fromkeys(names))
    for our_name, file_name in named.items():
        known_names = NAMED if file_name is not None else row_columns
        if our_name not in known_names:
            similar = difflib.get_close_matches(
                our_name, filter(pasting.typeable, known_names), n=1
            )
            corrected = {
                similar[0] if similar and name == our_name else name: value
                for name, value in named.items()
            }
            if not similar:
                corrected = {name: file_name for name in known_names if pasting.typeable(name)}
                corrected = dict([*corrected.items()][:1])
            remedy = override(corrected)
            known_list = ", ".join(known_names)
            raise Refusal(
                "llm.columns-unknown",
                f"{KEY}.{our_name}={file_name or 'null'}: is not a column of {where} that is read;"
                f" name one of {known_list}, as `{remedy}`",
                key=KEY,
                value=our_name,
                known=list(known_names),
                remedy=remedy,
            )
        if file_name is not None and file_name not in row_columns:
            similar = (
                difflib.get_close_matches(file_name, row_columns, n=1, cutoff=0.3)
                or row_columns[:1]
            )
            remedy = override({**named, our_name: similar[0]}) if similar else override({})
            raise Refusal(
                "llm.columns-absent",
                f"{KEY}.{our_name}={file_name}: {where} has no such column; it has"
                f" {', '.join(row_columns) or 'none'}: use `{remedy}`",
                key=KEY,
                value=file_name,
                found=row_columns,
                remedy=remedy,
            )
