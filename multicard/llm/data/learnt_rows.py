"""Leave out rows whose columns say that they are not to be learnt, and count them.

A switch of a row (`weight`, `train`, `loss`) means the same as in a message. Other columns say
whether an answer is wanted, as in KTO's data. They are heeded if the command names them, and
refused otherwise.
"""

import math

from multicard.llm.data import columns as names
from multicard.llm.data.columns import RowColumns, override
from multicard.llm.data.roles import OFF, ON, OPPOSITE, SWITCHES
from multicard.messages import Refusal

# Columns that say whether an answer is wanted, in any of the words in VERDICTS.
LABELS = (
    "label",
    "kto_tag",
    "kto_label",
    "desirable",
    "is_desirable",
    "thumbs_up",
    "feedback",
    names.WANTED,
)
# Columns that may mean something else, unless they hold true or false.
FLAGS = (
    "chosen",
    "is_chosen",
    "accepted",
    "is_accepted",
    "preferred",
    "is_preferred",
    "correct",
    "is_correct",
    "is_good",
    "approved",
    "is_approved",
)
# Columns in which true says that an answer is not wanted.
OPPOSITE_LABELS = (
    "undesirable",
    "is_undesirable",
    "unwanted",
    "is_rejected",
    "is_bad",
    "is_wrong",
    "is_incorrect",
    "thumbs_down",
)
WANTED = (
    *ON,
    "t",
    "y",
    "desirable",
    "desired",
    "wanted",
    "good",
    "positive",
    "chosen",
    "accepted",
    "preferred",
    "correct",
    "like",
    "liked",
    "up",
    "thumbs_up",
    "thumbs up",
    "👍",
    "+1",
)
UNWANTED = (
    *OFF,
    "f",
    "n",
    "undesirable",
    "undesired",
    "unwanted",
    "bad",
    "negative",
    "rejected",
    "incorrect",
    "wrong",
    "dislike",
    "disliked",
    "down",
    "thumbs_down",
    "thumbs down",
    "👎",
    "-1",
    "-1.0",
)
VERDICTS = (*WANTED, *UNWANTED)
# If a row has one of these columns, a number or a word is a verdict on an answer. If it only has a
# text, they are its class.
ANSWERS = (*names.ANSWER, *names.CONVERSATION, "summary")


def left_out_by(row: RowColumns) -> str | None:
    """Return the column that says that a row is not to be learnt, or None.

    It has the name that the file uses.

    Raises:
        Refusal: the column's value cannot be heeded.
    """
    if names.WANTED in row.named and not _is_wanted(row):
        return row.file_name(names.WANTED)
    column: str | None = None
    for name in row.filled(SWITCHES):
        lower_value = _lower_text(row.peek(name))
        if lower_value in (*ON, *OFF):
            row.pass_over(name)
            if (lower_value in ON) == (name in OPPOSITE):
                column = column or row.file_name(name)
        elif isinstance(row.peek(name), list) or _is_number(lower_value):
            raise _unheeded_switch(row, name)
    return column


def _is_wanted(row: RowColumns) -> bool:
    """Tell whether the row's answer is wanted, by the column that the command names."""
    value = row.get(names.WANTED)
    lower_value = _lower_text(value)
    if lower_value not in VERDICTS:
        name = row.file_name(names.WANTED)
        raise Refusal(
            "llm.row-wanted",
            f"has {name}={value!r}, which does not say whether its answer is wanted; give true or"
            " false, or leave the row out",
            column=name,
            value=str(value),
        )
    is_opposite = row.file_name(names.WANTED).lower().strip() in OPPOSITE_LABELS
    return (lower_value in WANTED) != is_opposite


def _unheeded_switch(row: RowColumns, name: str) -> Refusal:
    file_name = row.file_name(name)
    remedy = override({file_name: None})
    return Refusal(
        "llm.row-weight",
        f"has {file_name}={row.peek(name)!r}, but only 0 and 1, or false and true, are understood"
        f" for a row; leave the column out, as `{remedy}`",
        column=file_name,
        value=str(row.peek(name)),
        remedy=remedy,
    )


def refuse_label(row: RowColumns) -> None:
    """Refuse a row that says whether its answer is wanted, unless the command names the column."""
    has_answer = bool(row.filled(ANSWERS))
    for name in row.filled_unread((*LABELS, *FLAGS, *OPPOSITE_LABELS)):
        value = row.peek(name)
        lower_value = _lower_text(value)
        is_truth = isinstance(value, bool) or lower_value in ("true", "false")
        is_verdict = name not in FLAGS and has_answer and lower_value in VERDICTS
        if is_truth or is_verdict:
            file_name = row.file_name(name)
            remedy = override({names.WANTED: file_name})
            raise Refusal(
                "llm.row-kto",
                f"says whether its answer is wanted ({file_name}), as in KTO's data; learn only the"
                f" wanted answers, as `{remedy}`, or all answers, as"
                f" `{override({file_name: None})}`",
                column=file_name,
                remedy=remedy,
            )


def _lower_text(value: object) -> str:
    return str(value).lower().strip()


def _is_number(text: str) -> bool:
    try:
        number = float(text)
    except ValueError:
        return False
    return not math.isnan(number)  # A column without a number holds NaN.
