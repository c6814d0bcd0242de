"""Read rows of text and leave out rows from which nothing can be learnt.

If `max_seq_len` cuts off a row's whole answer, the row has no label. A batch of such rows has a
loss of NaN: it is the mean over no tokens.
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
from multicard.records.schema_data import Ignored

Turn = Mapping[str, str]  # A turn in ShareGPT's form: `from` (system, human, gpt) and `value`.
pc: Any = pyarrow.compute  # Typed as Any: its functions are generated on import.

SCANNED_ROWS = 100_000  # Rows that are scanned at a time.
# A row has at most one token for each byte of its text, and this number in addition, for the text
# of the template and the header of each message.
EXTRA_TOKENS_OF_ROW = 1024
EXTRA_TOKENS_OF_TEXT = 16


class LabelledRows(Dataset[dict[str, Any]]):
    """torchtune's rows without the rows that have no label left.

    The first token of a row never has a label: nothing in the row predicts it, and in a packed
    sequence it follows another row. Its label must be masked here, because torchtune's recipes
    count the labels before they shift them, and weigh batches and ranks by these counts.

    Attributes:
        read, cut, left_out, broken, equal, last_alone: The fields of the record's `text_rows`.
        ignored: The record's `ignored`, by name.

    Args:
        model_limit: Number of tokens that the model reads at most, or None if there is no limit.
            A remedy must not exceed it.

    Raises:
        ValueError: No row has a label.
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
        self._kept_numbers: Sequence[int] = range(len(rows))
        self.read = len(rows)
        self.cut = 0
        unlabelled = set()
        # Only these rows can be cut, so that the others need not be tokenized.
        long_rows = np.flatnonzero(most_tokens(rows._data) > limit).tolist() if limit else []
        for number in long_rows:
            row = rows[number]
            answers = labels(row)
            is_cut = False
            if max(map(len, answers)) == limit:
                with mock.patch.object(tokenizer, "max_seq_len", None):  # Do not cut the row.
                    is_cut = max(map(len, labels(rows[number]))) > limit
            self.cut += is_cut
            if not all(map(bears_loss, answers)) or (is_cut and _are_equal(row)):
                unlabelled.add(number)
        self.left_out = len(unlabelled)
        if unlabelled:
            self._kept_numbers = [
                number for number in self._kept_numbers if number not in unlabelled
            ]
        if self.read and not self._kept_numbers:
            raise _answers_cut_off(rows, tokenizer, model_limit, is_held_out)

    def __len__(self) -> int:
        return len(self._kept_numbers)

    def column(self, name: str) -> list[Any]:
        """Return a column of the kept rows, as stored."""
        stored_column = self._rows._data[name]
        return [stored_column[number] for number in self._kept_numbers]

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self._rows[self._kept_numbers[index]]
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
    """Build the data set that torchtune's configuration names as a component.

    Rows without a label are left out of `builder`'s rows before they are packed.

    Args:
        builder: Import path of a data set of torchtune's. It takes the other arguments.
        broken, equal, ignored: What was left out earlier, for the record.
        last_alone: Number of rows of which only the last answer is learnt, for the record.
        is_held_out: True if the rows are not trained on. A refusal says so.
        model_limit: Number of tokens that the model reads at most, or None if there is no limit.
    """
    builder_rows = _get_component_from_path(builder)(tokenizer, **arguments)
    rows = LabelledRows(
        builder_rows, tokenizer, broken, equal, last_alone, ignored, is_held_out, model_limit
    )
    return PackedDataset(rows, max_seq_len=tokenizer.max_seq_len) if packed else rows


def _answers_cut_off(
    rows: Any, tokenizer: Any, model_limit: int | None, is_held_out: bool
) -> Refusal:
    """Return the refusal of rows whose answers are all cut off by the tokenizer's `max_seq_len`.

    Args:
        model_limit: Number of tokens that the model reads at most, or None if there is no limit.
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
            f"model.max_seq_len={model_limit}: the model reads no more tokens. In all"
            f" {len(rows)} {'held-out ' if is_held_out else ''}rows, the answers, or the"
            " differences of pairs, lie behind them. Shorten the text before them, or use a model"
            " that reads more",
            key="model.max_seq_len",
            value=model_limit,
            rows=len(rows),
            held_out=is_held_out,
        )
    if is_held_out:
        return Refusal(
            "llm.held-out-cut-off",
            f"max_seq_len={limit}: none of the {len(rows)} held-out rows has an answer, or a"
            f" difference between its answers, left; use `max_seq_len={length}`, or"
            " `dataset.split=0 dataset.test_files=null` to hold no rows out",
            key="max_seq_len",
            value=limit,
            rows=len(rows),
            length=length,
        )
    return Refusal(
        "llm.answers-cut-off",
        f"max_seq_len={limit}: none of the {len(rows)} rows has an answer, or a difference between"
        f" its answers, left; use `max_seq_len={length}`",
        key="max_seq_len",
        value=limit,
        rows=len(rows),
        length=length,
    )


def _labelled_rows(data: Any) -> Any:
    """Return the labelled rows in what `dataset` returned."""
    return data.ds if isinstance(data, PackedDataset) else data


def ignored(data: Any) -> list[Ignored]:
    """Return the record's `ignored`: columns, keys of messages and files that were not read."""
    return [Ignored(name, count) for name, count in _labelled_rows(data).ignored.items()]


def counts(data: Any) -> dict[str, Any]:
    """Return the record's `text_rows`, from what `dataset` returned."""
    packed = isinstance(data, PackedDataset)
    rows = _labelled_rows(data)
    text_rows = {
        name: getattr(rows, name)
        for name in ("read", "cut", "left_out", "broken", "equal", "last_alone")
    }
    return text_rows | {"sequences": len(data) if packed else None}


def labels(row: Mapping[str, Any]) -> list[Sequence[int]]:
    """Return the labels of a row, or of both answers of a pair. They are not yet shifted."""
    return [row["labels"]] if "labels" in row else [row["chosen_labels"], row["rejected_labels"]]


def _are_equal(row: Mapping[str, Any]) -> bool:
    """Return True for a pair whose answers have the same tokens after both were cut."""
    names = ("chosen_input_ids", "rejected_input_ids")
    return "labels" not in row and list(row[names[0]]) == list(row[names[1]])


def _can_be_learnt(row: Mapping[str, Any]) -> bool:
    """Return True if a row has a token to predict.

    For a pair, both answers must have one, and must differ.
    """
    return all(map(bears_loss, labels(row))) and not _are_equal(row)


def bears_loss(answer: Sequence[int]) -> bool:
    """Return True if any token is to be predicted. The first one never is."""
    return any(label != CROSS_ENTROPY_IGNORE_IDX for label in answer[1:])


def most_tokens(rows: Any) -> np.ndarray:
    """Return an upper bound of the tokens in each row of a `datasets.Dataset`.

    It needs no tokenizer, since a token is at least one byte. It works on columns, because
    C4_200M has 18 million rows.
    """
    tables = rows.with_format("arrow").iter(batch_size=SCANNED_ROWS) if len(rows) else ()
    sizes = (
        sum(text_bytes(column.combine_chunks()) for column in table.columns) for table in tables
    )
    return EXTRA_TOKENS_OF_ROW + np.concatenate([np.empty(0, np.int64), *sizes])


def text_bytes(values: pa.Array) -> np.ndarray:
    """Return the bytes of all text in each value, plus `EXTRA_TOKENS_OF_TEXT` for each text.

    Numbers count 0.
    """
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        return pc.fill_null(pc.add(pc.binary_length(values), EXTRA_TOKENS_OF_TEXT), 0).to_numpy(
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
    """Converts a row with `conversations` to messages in Alpaca's template.

    The prompt is learnt too, which is torchtune's default for Alpaca.
    """

    def __call__(self, sample: Mapping[str, Any]) -> Mapping[str, Any]:
        return super().__call__(instruction(sample["conversations"]))


def instruction(turns: Sequence[Turn]) -> dict[str, str]:
    """Return Alpaca's columns for a conversation of one question and one answer.

    The system text is the instruction and the question is its input. Without a system text, the
    question is the instruction. Several questions are refused.
    """
    text_by_speaker = {turn["from"]: turn["value"] for turn in turns}
    if len(text_by_speaker) < len(turns):
        raise Refusal(
            "llm.several-questions",
            "template=instruct: a conversation has several questions; leave it out",
            key="template",
        )
    system = text_by_speaker.get("system")
    question = text_by_speaker["human"]
    prompt = (
        {"instruction": system, "input": question}
        if system
        else {"instruction": question, "input": ""}
    )
    return prompt | {"output": text_by_speaker["gpt"]}


def conversations(tokenizer: Any, *, source: str, **arguments: Any) -> SFTDataset:
    """Build rows of conversations for torchtune's recipes, as torchtune's builders do.

    `arguments` are passed on to `datasets.load_dataset`.
    """
    transform = ConversationToAlpaca(train_on_input=True)
    return SFTDataset(
        source=source, message_transform=transform, model_transform=tokenizer, **arguments
    )


def chat_tokens(tokenizer: Any, sample: Mapping[str, Any]) -> dict[str, Any]:
    """Tokenize the `pieces` of a conversation, and mask tokens without a learnt character.

    Special tokens in the text are encoded as special tokens.
    """
    pieces = sample["pieces"]
    texts = [piece["content"] for piece in sample["pieces"]]
    if isinstance(tokenizer, FolderTokenizer):
        tokens, spans = tokenizer.encode("".join(texts))
        learnt_characters = np.repeat([piece["learnt"] for piece in pieces], [*map(len, texts)])
        mask = np.array([not learnt_characters[first:last].any() for first, last in spans])
        return {"tokens": tokens[: tokenizer.max_seq_len], "mask": mask[: tokenizer.max_seq_len]}
    if isinstance(tokenizer, Llama3Tokenizer):
        encoding = tokenizer.tt_model.tt_model
        tokens = encoding.encode("".join(texts), allowed_special="all")
        sizes = [len(encoding.decode_single_token_bytes(token)) for token in tokens]
    else:  # Qwen's normalises text, and represents each byte of a token by a character.
        texts = [normalize("NFC", text) for text in texts]
        tokens = tokenizer.encode("".join(texts), add_bos=False, add_eos=False)
        special = {token: name for name, token in tokenizer.special_tokens.items()}
        sizes = [len(special.get(token) or tokenizer.decoder[token]) for token in tokens]
    learnt_bytes = [
        np.full(len(text.encode()), piece["learnt"])
        for text, piece in zip(texts, pieces, strict=True)
    ]
    mask = ~np.logical_or.reduceat(
        np.concatenate(learnt_bytes), [0, *np.cumsum(sizes)[:-1].tolist()]
    )
    return {"tokens": tokens[: tokenizer.max_seq_len], "mask": mask[: tokenizer.max_seq_len]}


def chats(tokenizer: Any, *, source: str, **arguments: Any) -> SFTDataset:
    """Build the rows of `dataset=chat`, which are pieces of text.

    `arguments` are passed on to `datasets.load_dataset`.
    """
    transform: Any = partial(chat_tokens, tokenizer)
    return SFTDataset(source=source, message_transform=None, model_transform=transform, **arguments)  # pyright: ignore[reportArgumentType]


class LastAnswers(ChosenRejectedToMessages):
    """Converts a pair to messages, and masks the assistant's turns in the shared history."""

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
    """Build pairs for torchtune's recipes, as torchtune's builder does.

    `arguments` are passed on to `datasets.load_dataset`.
    """
    return PreferenceDataset(
        source=source, message_transform=LastAnswers(), tokenizer=tokenizer, **arguments
    )


class ChatPairs(Dataset[dict[str, Any]]):
    """Pairs of answers, each in pieces of text.

    `arguments` are passed on to `datasets.load_dataset`.
    """

    def __init__(self, tokenizer: Any, *, source: str, **arguments: Any) -> None:
        self._data = load_dataset(source, **arguments)
        self._tokenizer = tokenizer

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = {}
        stored_row = self._data[index]
        for name in pairs_of_rows.CHOICES:  # Held-out rows have further columns.
            encoded = chat_tokens(self._tokenizer, {"pieces": stored_row[name]})
            labels = np.where(encoded["mask"], CROSS_ENTROPY_IGNORE_IDX, encoded["tokens"])
            row |= {f"{name}_input_ids": encoded["tokens"], f"{name}_labels": labels.tolist()}
        return row
