"""The data sets of text that `tune_llm.py` tunes on: their keys, and properties of their rows.

Does not import torch.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Optional

from multicard.config.base import GroupOption
from multicard.config.keys import key
from multicard.config.roles import DATA_FILES, Role
from multicard.messages import Refusal

HELD_OUT = 0.1  # The share of the user's own rows that is held out by default.
BY_DEFAULT = "auto"  # The value of `dataset.split` if a command does not set it.

ChatLoss = StrEnum("ChatLoss", ["answers", "all"])


@dataclass
class TextConfig(GroupOption):
    """The keys of every data set of text.

    After `__post_init__`, `split` is a share in (0, 1), or None if no rows are held out.
    `is_split_by_default` is True if the command does not set it. A data set with too few rows then
    holds none out, instead of being refused.
    """

    split: Any = key(
        BY_DEFAULT,
        "share of dataset.rows to hold out for measuring the loss, in (0, 1); 0 or null: none;"
        " auto: 0.1 for chat, preference and data_files, else none",
        Role.identity | Role.work | Role.length | Role.part | Role.learning,
        since=("rows", None),
        also=("val_split", "validation_split", "val_size", "test_size", "eval_split"),
    )

    def __post_init__(self) -> None:
        self.is_split_by_default = self.split == BY_DEFAULT
        if self.is_split_by_default:
            self.split = HELD_OUT if self.is_of_ones_own and not self.has_test_files else None
        is_number = isinstance(self.split, int | float) and not isinstance(self.split, bool)
        if self.split is not None and not (is_number and 0 <= self.split < 1):
            raise Refusal(
                "config.text-split",
                f"dataset.split={self.split}: is a share of the rows; give a value in (0, 1), as"
                " `dataset.split=0.1`, or `dataset.split=0` to hold none out",
                key="dataset.split",
                value=str(self.split),
            )
        self.split = float(self.split) if self.split else None
        if self.split is not None and self.has_test_files:
            raise Refusal(
                "config.split-and-test-files",
                f"dataset.split={self.split}: dataset.test_files are held out already; leave out"
                " one of them, by `dataset.split=0` or `dataset.test_files=null`",
                key="dataset.split",
                value=self.split,
            )

    @property
    def is_of_ones_own(self) -> bool:
        """True for rows that are neither generated nor one of the papers' data sets on the hub."""
        return False

    @property
    def has_test_files(self) -> bool:
        return False

    @property
    def holds_out(self) -> bool:
        """True if rows are held out, by either key."""
        return self.split is not None or self.has_test_files


@dataclass
class StoredTextConfig(TextConfig):
    """Rows from the Hugging Face hub (`source`) or from local files (`data_files`)."""

    source: Optional[str] = key(
        None,
        "name on the Hugging Face hub",
        Role.identity | Role.work | Role.input | Role.learning | Role.speed,
    )
    revision: Optional[str] = key(
        None,
        "branch, tag or commit on the hub; null: the latest",
        Role.identity | Role.work | Role.learning | Role.speed,
        since=("source", None),
    )
    data_files: Any = key(
        None,
        "local files instead of the hub: a .jsonl, .json, .csv, .tsv, .parquet or .arrow file, a"
        " list, a pattern or a folder",
        DATA_FILES,
    )
    test_files: Any = key(
        None,
        "files of rows on which only the loss is measured; given like dataset.data_files",
        DATA_FILES,
        since=("data_files", None),
    )
    columns: dict[str, Optional[str]] = key(
        dict,
        "names of the columns, as {instruction: question, output: answer}; null leaves a column"
        " out",
        Role.identity | Role.work | Role.input | Role.learning | Role.rows | Role.text | Role.speed,
        since=("data_files", {}),
    )
    rows: Optional[int] = key(
        None,
        "size of a random sample of rows, drawn by seed; dataset.split holds out some of these;"
        " null: all rows",
        Role.identity | Role.work | Role.length | Role.part | Role.drawn | Role.learning,
        least=1,
        shown=6,
        also=("max_samples", "num_samples", "max_train_samples"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, files in (
            ("dataset.data_files", self.data_files),
            ("dataset.test_files", self.test_files),
        ):
            file_list = files if isinstance(files, list) else [files]
            if files is not None and not (
                file_list and all(isinstance(file, str) for file in file_list)
            ):
                raise Refusal(
                    "config.data-files",
                    f"{name}={files}: is not a file; give one, or a list, as"
                    f" `{name}=[a.jsonl,b.jsonl]`",
                    key=name,
                    value=str(files),
                )

    @property
    def is_of_ones_own(self) -> bool:
        return self.data_files is not None or DATASETS[self.name].is_of_ones_own

    @property
    def has_test_files(self) -> bool:
        return self.test_files is not None


@dataclass
class ChatConfig(StoredTextConfig):
    """Conversations: `messages` with role and content, or ShareGPT's `conversations`."""

    loss: ChatLoss = key(
        ChatLoss.answers,
        "answers: loss only on the assistant's turns; all: loss on every token",
        Role.identity | Role.work | Role.learning | Role.loss | Role.speed,
    )
    chat_template: Optional[str] = key(
        None,
        "a .jinja file, or a folder with one; null: the model's own template, or Llama 3's",
        Role.identity | Role.work | Role.learning | Role.speed,
    )
    skip_broken: bool = key(
        False,
        "leave out, and count, rows that are not conversations or that the template rejects",
        Role.identity | Role.work | Role.learning | Role.speed,
    )


@dataclass
class SyntheticConfig(TextConfig):
    """Rows that are generated from the seed, without files or downloads."""

    rows: int = key(
        500,
        "number of rows to generate",
        Role.identity | Role.work | Role.length | Role.part | Role.drawn | Role.learning,
        least=1,
        shown=6,
    )


@dataclass(frozen=True)
class DatasetFacts:
    """Properties of a data set's rows.

    template: the template that is used unless another is chosen; None: the rows are messages.
    conversations: the rows are ShareGPT conversations, to which the template `instruct` can be
        applied, too.
    """

    schema: type
    template: str | None
    any_template: bool = False
    conversations: bool = False
    has_answers: bool = True  # One answer per row, for supervised tuning.
    has_pairs: bool = False  # A chosen and a rejected answer per row.
    # Not a data set of the papers: some rows are held out unless the command says otherwise.
    is_of_ones_own: bool = False


DATASETS = {
    "synthetic": DatasetFacts(SyntheticConfig, "instruct", any_template=True, has_pairs=True),
    "alpaca_cleaned": DatasetFacts(StoredTextConfig, "instruct"),
    "grammar": DatasetFacts(StoredTextConfig, "grammar"),
    "samsum": DatasetFacts(StoredTextConfig, "summarize"),
    "slimorca": DatasetFacts(StoredTextConfig, None, conversations=True),
    "chat": DatasetFacts(ChatConfig, None, is_of_ones_own=True),
    "preference": DatasetFacts(
        StoredTextConfig,
        None,
        any_template=True,
        has_answers=False,
        has_pairs=True,
        is_of_ones_own=True,
    ),
}
