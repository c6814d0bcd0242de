"""Rows of text that can be learnt from: those whose answer
`max_seq_len` cut away altogether are left out.

A batch of such rows alone has no label, and its loss, a mean over none, is NaN.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any
from unicodedata import normalize
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.compute
from datasets import load_dataset
from torch.utils.data import Dataset
from torchtune.config._utils import _get_component_from_path
from torchtune.data import CROSS_ENTROPY_IGNORE_IDX, AlpacaToMessages, ChosenRejectedToMessages
from torchtune.datasets import PackedDataset, PreferenceDataset, SFTDataset
from torchtune.models.llama3 import Llama3Tokenizer

from multicard.llm.data import pairs as pairs_of_rows
from multicard.llm.data.tokenizer import FolderTokenizer
from multicard.messages import Refusal
from multicard.records.schema_parts import Ignored

Turn = Mapping[str, str]  # ShareGPT's: `from` (system, human, gpt) and `value`
pc: Any = pyarrow.compute  # makes its functions as it is imported

SCANNED_ROWS = 100_000  # at a time
# Most tokens that a row has beside one for each byte of its text: the template's text,
# and each message's header
AROUND_ROW = 1024
AROUND_TEXT = 16


class LabelledRows(Dataset[dict[str, Any]]):
    """torchtune's rows without those that have no label left;
    refused (ValueError) where no row has one.

    The first token of a row has no label: nothing in the row predicts it, and in a pack it stands
    behind another row. torchtune's recipes count labels before they shift them,
    and weigh batches and ranks by these counts.

    read, cut, left_out, broken, equal, last_alone: the record's `text_rows`. ignored: the record's,
    by name.
    model_limit: the most tokens that the model reads, which a remedy must not exceed;
    None: any number.
    """

    def __init__(
        self,
        rows: Any,
        tokenizer: Any,
        broken: int | None = None,
        equal: int | None = None,
        last_alone: int = 0,
        ignored: Mapping[str, int] | None = None,
        is_held_out: bool = False,
        model_limit: int | None = None,
    ) -> None:
        self._rows = rows
        limit = tokenizer.max_seq_len
        self.broken = broken
        self.equal = equal
        self.last_alone = last_alone
        self.ignored = dict(ignored or {})
        self._kept: Sequence[int] = range(len(rows))
        self.read = len(rows)
        self.cut = 0
        unlabelled = set()
        for number in np.flatnonzero(most_tokens(rows._data) > limit).tolist() if limit else ():
            row = rows[number]
            answers = labels(row)
            is_cut = False
            if max(map(len, answers)) == limit:
                with mock.patch.object(tokenizer, "max_seq_len", None):  # the whole row
                    is_cut = max(map(len, labels(rows[number]))) > limit
            self.cut += is_cut
            if not all(map(bears_loss, answers)) or (is_cut and _are_equal(row)):
                unlabelled.add(number)
        self.left_out = len(unlabelled)
        if unlabelled:
            self._kept = [number for number in self._kept if number not in unlabelled]
        if self.read and not self._kept:
            raise _cut_off(rows, tokenizer, model_limit, is_held_out)

    def __len__(self) -> int:
        return len(self._kept)

    def column(self, name: str) -> list[Any]:
        """A column of the kept rows as they are stored."""
        every = self._rows._data[name]
        return [every[number] for number in self._kept]

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self._rows[self._kept[index]]
        if "labels" not in row:
            return row
        return {**row, "labels": [CROSS_ENTROPY_IGNORE_IDX, *row["labels"][1:]]}


def dataset(
    tokenizer: Any,
    *,
    builder: str,
    packed: bool = False,
    broken: int | None = None,
    equal: int | None = None,
    last_alone: int = 0,
    ignored: Mapping[str, int] | None = None,
    is_held_out: bool = False,
    model_limit: int | None = None,
    **arguments: Any,
) -> LabelledRows | PackedDataset:
    """The component of torchtune's configuration: `builder`'s rows, those without a label left out
    before they are packed.

    Args:
        builder: torchtune's data set, by its path; it takes the other arguments.
        broken, equal, ignored: what was left out of it before, for the record.
        last_alone: rows of whose answers only the last is learnt, for the record.
        is_held_out: they are not trained on, which a refusal says.
        model_limit: the most tokens that the model reads; None: any number.
    """
    read = _get_component_from_path(builder)(tokenizer, **arguments)
    rows = LabelledRows(
        read, tokenizer, broken, equal, last_alone, ignored, is_held_out, model_limit
    )
    return PackedDataset(rows, max_seq_len=tokenizer.max_seq_len) if packed else rows


def _cut_off(rows: Any, tokenizer: Any, model_limit: int | None, is_held_out: bool) -> Refusal:
    """The refusal of rows that are all cut before anything of them can be learnt,
    at the tokenizer's `max_seq_len`.

    Args:
        model_limit: the most tokens that the model reads; None: any number.
    """
    limit = tokenizer.max_seq_len
    with mock.patch.object(tokenizer, "max_seq_len", None):
        answers = chain.from_iterable(labels(rows[number]) for number in range(len(rows)))
        longest = max(map(len, answers))
    length = longest if model_limit is None else min(longest, model_limit)
    with mock.patch.object(tokenizer, "max_seq_len", length):
        can_be_learnt = length > limit and any(
            _can_be_learnt(rows[number]) for number in range(len(rows))
        )
    if not can_be_learnt:
        return Refusal(
            "llm.answers-beyond-model",
            f"model.max_seq_len={model_limit}: the model reads no more tokens, and the answers, or"
            f" differences of pairs, of all {len(rows)} {'held-out ' if is_held_out else ''}rows"
            " are behind them. Shorten what stands before, or take a model that reads more",
            key="model.max_seq_len",
            value=model_limit,
            rows=len(rows),
            held_out=is_held_out,
        )
    if is_held_out:
        return Refusal(
            "llm.held-out-cut-off",
            f"max_seq_len={limit}: leaves no answer, or of pairs no difference, in any of the"
            f" {len(rows)} held-out rows; use `max_seq_len={length}`, or `dataset.split=0"
            " dataset.test_files=null` to hold none out",
            key="max_seq_len",
            value=limit,
            rows=len(rows),
            length=length,
        )
    return Refusal(
        "llm.answers-cut-off",
        f"max_seq_len={limit}: leaves no answer, or of pairs no difference, in any of the"
        f" {len(rows)} rows; use `max_seq_len={length}`",
        key="max_seq_len",
        value=limit,
        rows=len(rows),
        length=length,
    )


def _rows_of(data: Any) -> Any:
    """The labelled rows of what `dataset` returned."""
    return data.ds if isinstance(data, PackedDataset) else data


def ignored(data: Any) -> list[Ignored]:
    """The record's `ignored`, of what `dataset` returned: columns,
    keys of messages and files that were not read.
    """
    return [Ignored(what, count) for what, count in _rows_of(data).ignored.items()]


def counts(data: Any) -> dict[str, Any]:
    """The record's `text_rows`, of what `dataset` returned."""
    packed = isinstance(data, PackedDataset)
    rows = _rows_of(data)
    own = {
        name: getattr(rows, name)
        for name in ("read", "cut", "left_out", "broken", "equal", "last_alone")
    }
    return own | {"sequences": len(data) if packed else None}


def labels(row: Mapping[str, Any]) -> list[Sequence[int]]:
    """The labels of a row, or those of a pair's two answers; not yet shifted."""
    return [row["labels"]] if "labels" in row else [row["chosen_labels"], row["rejected_labels"]]


def _are_equal(row: Mapping[str, Any]) -> bool:
    """True of a pair whose answers have the same tokens: they
    differ after the place where both were cut.
    """
    names = ("chosen_input_ids", "rejected_input_ids")
    return "labels" not in row and list(row[names[0]]) == list(row[names[1]])


def _can_be_learnt(row: Mapping[str, Any]) -> bool:
    """True of a row, or of both answers of a pair that differ, with a token to predict."""
    return all(map(bears_loss, labels(row))) and not _are_equal(row)


def bears_loss(answer: Sequence[int]) -> bool:
    """True if a token is to be predicted; the first never is."""
    return any(label != CROSS_ENTROPY_IGNORE_IDX for label in answer[1:])


def most_tokens(rows: Any) -> np.ndarray:
    """The most tokens that each row of a `datasets.Dataset` can have,
    without tokenizing it: a token is a byte or more.

    Works on columns: C4_200M has 18 million rows.
    """
    tables = rows.with_format("arrow").iter(batch_size=SCANNED_ROWS) if len(rows) else ()
    sizes = (
        sum(text_bytes(column.combine_chunks()) for column in table.columns) for table in tables
    )
    return AROUND_ROW + np.concatenate([np.empty(0, np.int64), *sizes])


def text_bytes(values: pa.Array) -> np.ndarray:
    """Bytes of all text in each value, with `AROUND_TEXT` for each text; 0 for numbers."""
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return pc.fill_null(pc.add(pc.binary_length(values), AROUND_TEXT), 0).to_numpy(
            zero_copy_only=False
        )
    if pa.types.is_struct(values.type):
        return sum(
            (text_bytes(field) for field in values.flatten()), np.zeros(len(values), np.int64)
        )
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        ends = np.cumsum(
            pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        )
        sums = np.concatenate([[0], np.cumsum(text_bytes(values.flatten()))])
        return np.diff(sums[ends], prepend=0)
    return np.zeros(len(values), np.int64)


class ConversationToAlpaca(AlpacaToMessages):
    """torchtune's messages of a row with `conversations`, in Alpaca's template. The prompt is
    learnt too, as Alpaca's is by default.
    """

    def __call__(self, sample: Mapping[str, Any]) -> Mapping[str, Any]:
        return super().__call__(instruction(sample["conversations"]))


def instruction(turns: Sequence[Turn]) -> dict[str, str]:
    """Alpaca's columns of a conversation of one question and one answer: the system's text is the
    instruction and the question its input; without such a text the question is the instruction.
    Several questions are refused.
    """
    said = {turn["from"]: turn["value"] for turn in turns}
    if len(said) < len(turns):
        raise Refusal(
            "llm.several-questions",
            "template=instruct: a conversation has several questions; leave it out",
            key="template",
        )
    system = said.get("system")
    question = said["human"]
    asked = (
        {"instruction": system, "input": question}
        if system
        else {"instruction": question, "input": ""}
    )
    return asked | {"output": said["gpt"]}


def conversations(tokenizer: Any, *, source: str, **arguments: Any) -> SFTDataset:
    """Rows for torchtune's recipes, as its own builders make them;
    `arguments` are `datasets.load_dataset`'s.
    """
    transform = ConversationToAlpaca(train_on_input=True)
    return SFTDataset(
        source=source, message_transform=transform, model_transform=tokenizer, **arguments
    )


def chat_tokens(tokenizer: Any, sample: Mapping[str, Any]) -> dict[str, Any]:
    """The tokens of a conversation's `pieces`, special tokens read as such, and a mask of those
    that have no character with loss.
    """
    pieces = sample["pieces"]
    texts = [piece["content"] for piece in sample["pieces"]]
    if isinstance(tokenizer, FolderTokenizer):
        tokens, spans = tokenizer.encode("".join(texts))
        letters = np.repeat([piece["learnt"] for piece in pieces], [*map(len, texts)])
        mask = np.array([not letters[first:last].any() for first, last in spans])
        return {"tokens": tokens[: tokenizer.max_seq_len], "mask": mask[: tokenizer.max_seq_len]}
    if isinstance(tokenizer, Llama3Tokenizer):
        encoding = tokenizer.tt_model.tt_model
        tokens = encoding.encode("".join(texts), allowed_special="all")
        sizes = [len(encoding.decode_single_token_bytes(token)) for token in tokens]
    else:  # Qwen's, which normalises text and writes a byte of a token as a character
        texts = [normalize("NFC", text) for text in texts]
        tokens = tokenizer.encode("".join(texts), add_bos=False, add_eos=False)
        special = {token: name for name, token in tokenizer.special_tokens.items()}
        sizes = [len(special.get(token) or tokenizer.decoder[token]) for token in tokens]
    learnt = [
        np.full(len(text.encode()), piece["learnt"])
        for text, piece in zip(texts, pieces, strict=True)
    ]
    mask = ~np.logical_or.reduceat(np.concatenate(learnt), [0, *np.cumsum(sizes)[:-1].tolist()])
    return {"tokens": tokens[: tokenizer.max_seq_len], "mask": mask[: tokenizer.max_seq_len]}


def chats(tokenizer: Any, *, source: str, **arguments: Any) -> SFTDataset:
    """The rows of `dataset=chat`, which are pieces of text;
    `arguments` as those of `conversations`.
    """
    transform: Any = partial(chat_tokens, tokenizer)
    return SFTDataset(source=source, message_transform=None, model_transform=transform, **arguments)  # pyright: ignore[reportArgumentType]


class LastAnswers(ChosenRejectedToMessages):
    """torchtune's messages of a pair, the assistant's turns of
    the history that both answers share masked.
    """

    def __call__(self, sample: Mapping[str, Any]) -> Mapping[str, Any]:
        chosen = sample["chosen"]
        rejected = sample["rejected"]
        history = pairs_of_rows.shared_length(chosen, rejected, min(len(chosen), len(rejected)) - 1)
        pair = super().__call__(sample)
        for messages in pair.values():
            for message in messages[:history]:
                message.masked = True
        return pair


def pairs(tokenizer: Any, *, source: str, **arguments: Any) -> PreferenceDataset:
    """Pairs for torchtune's recipes, as its own builder makes them;
    `arguments` are `datasets.load_dataset`'s.
    """
    return PreferenceDataset(
        source=source, message_transform=LastAnswers(), tokenizer=tokenizer, **arguments
    )


class ChatPairs(Dataset[dict[str, Any]]):
    """Pairs of answers, each in pieces of text; `arguments` are `datasets.load_dataset`'s."""

    def __init__(self, tokenizer: Any, *, source: str, **arguments: Any) -> None:
        self._data = load_dataset(source, **arguments)
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = {}
        stored = self._data[index]
        for name in pairs_of_rows.CHOICES:  # held-out rows have others beside them
            encoded = chat_tokens(self._tokenizer, {"pieces": stored[name]})
            labels = np.where(encoded["mask"], CROSS_ENTROPY_IGNORE_IDX, encoded["tokens"])
            row |= {f"{name}_input_ids": encoded["tokens"], f"{name}_labels": labels.tolist()}
        return row
