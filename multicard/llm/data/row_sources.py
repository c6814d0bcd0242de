"""The rows that a run is tuned on: generated, read or fetched, checked, sampled, and in the form of its engine.

All of it happens in the controller, before any model is built, without torch. What cannot be used is refused with
ValueError, which names the key, or the row, and the remedy.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from multicard import messages
from multicard.config.llm import (
    DATASETS,
    ChatConfig,
    ChatLoss,
    HfConfig,
    LlmConfig,
    Qwen25TokenizerConfig,
    StoredTextConfig,
    SyntheticConfig,
)
from multicard.llm import methods
from multicard.llm.data import chat, forms, held_out_rows, hub, pairs, templates, turns
from multicard.llm.data import columns as names
from multicard.llm.data.chat import ChatTemplate
from multicard.llm.data.columns import Columns, Unread, override
from multicard.llm.data.files import StoredRows, read_file, value_of
from multicard.llm.data.forms import Conversation
from multicard.llm.data.held_out_rows import HeldOutRows
from multicard.llm.data.row_folders import KEY, TEST_KEY
from multicard.llm.data.turns import Message
from multicard.messages import Refusal

Row = dict[str, Any]

CHOICES = ("chosen", "rejected")
CHAT, FOLDER = ", or use `dataset=chat`", ", or use engine=trl with model=hf, whose template may write it"
SHARE_GPT = {"system": "system", "user": "human", "assistant": "gpt"}


class LoadedRows(NamedTuple):
    """What a run is tuned on.

    rows: in the form of its engine, in the seed's order; None for a whole data set of the hub, which torchtune reads
    by its name. broken: rows that `dataset.skip_broken` left out, None without the key. equal: pairs left out, as
    both answers are the same; None of other data. ignored: what nobody reads, with its count: columns, keys of messages
    as "messages.id", and files. available: rows that are stored; None of generated rows, of which there are any number.
    held_out: rows that are not trained on; None where none are. wanted: both kinds together, before any was left out.
    too_few: True where the default share was not held out, as too few rows would have been left.
    """

    rows: list[Row] | None
    broken: int | None = None
    equal: int | None = None
    ignored: Mapping[str, int] = {}
    available: int | None = None
    held_out: HeldOutRows | None = None
    wanted: int = 0
    too_few: bool = False


def load(config: LlmConfig) -> LoadedRows:
    """The run's rows. Refuses (ValueError) data that are not there, rows that cannot be read as they are meant, and a
    share of rows that leaves none to train or to measure on."""
    split = config.dataset.split
    loaded = _loaded(config, split)
    if split is None or loaded.rows is None or loaded.held_out is None:
        return loaded
    refusal = held_out_rows.refusal(split, loaded.wanted, loaded.rows, loaded.held_out.rows)
    if not config.dataset.is_split_by_default:
        if refusal is not None:
            raise refusal
        return loaded
    # the number of packed rows is only known to the ranks
    fills_a_step = config.packed or len(loaded.rows) >= config.rows_of_a_step
    return loaded if refusal is None and fills_a_step else _loaded(config, None)._replace(too_few=True)


def _loaded(config: LlmConfig, split: float | None) -> LoadedRows:
    """The run's rows, of which a share is held out."""
    data = config.dataset
    if isinstance(data, SyntheticConfig):
        return _synthetic(config, data, split)
    data = _stored(config)
    is_whole = (data.data_files or data.rows or data.test_files or split) is None
    if type(data) is StoredTextConfig and is_whole and DATASETS[data.name].has_answers:
        hub.check_source(data)
        if hub.revision(str(data.source)) is None:
            hub.fetch(data, 0)  # before the ranks do, each for itself, and before the data is identified
        ignored = _unread_of_whole(config, data)
        if ignored is not None:
            return LoadedRows(None, ignored=ignored)
    stored = read_file(data.data_files) if data.data_files else StoredRows(hub.fetch(data), {})
    rows = stored.rows
    key, value = _key(data)
    if not rows:
        raise Refusal(
            "llm.no-rows", f"{key}={value}: holds no rows; give a file with one row or more", key=key, value=value
        )
    names.check_named(data.columns, f"{key}={value}", rows)
    available, wanted = len(rows), data.rows or len(rows)
    if wanted > available:
        raise Refusal(
            "llm.few-rows",
            f"dataset.rows={wanted}: {key}={value} holds {available}; "
            f"use `dataset.rows={available}` or fewer, or `dataset.rows=null` for all",
            key="dataset.rows",
            value=wanted,
            available=available,
        )
    measured = held_out_rows.drawn(available, held_out_rows.size(wanted, split))
    others: Sequence[int] = range(available)
    if measured:
        others = [number for number in others if number not in measured]
    order = Random(config.seed).sample(others, wanted - len(measured))
    numbers = [*order, *sorted(measured)]
    read = _read(config, data, {number: rows[number] for number in numbers}, stored.ignored)
    trained = [row for number, row in read.rows.items() if number not in measured]
    held_out = None
    if data.test_files is not None:
        held_out, beside = _test_rows(config, data)
        read = read._replace(ignored=dict(Counter(read.ignored) + Counter(beside)))
    elif split is not None:
        kept = {number: row for number, row in read.rows.items() if number in measured}
        held_out = HeldOutRows([*kept.values()], [*kept])
    return LoadedRows(trained, read.broken, read.equal, read.ignored, available, held_out, wanted)


def _test_rows(config: LlmConfig, data: StoredTextConfig) -> tuple[HeldOutRows, Mapping[str, int]]:
    """The rows of `dataset.test_files`, and what nobody reads of them. Refused (ValueError) where they cannot be read
    as those are that are trained on."""
    place = value_of(data.test_files)
    stored = read_file(data.test_files, to_test=True)
    if not stored.rows:
        raise Refusal(
            "llm.no-test-rows",
            f"{TEST_KEY}={place}: holds no rows; give a file with one row or more, or use "
            f"`{TEST_KEY}=null dataset.split=0.1`",
            key=TEST_KEY,
            value=place,
        )
    try:
        read = _read(config, data, dict(enumerate(stored.rows)), stored.ignored)
    except Refusal as error:
        reason = error.facts.get("reason", error.message)
        # without its remedy, which would change how the other rows are read
        said = str(getattr(reason, "sentence", reason)).partition(";")[0]
        row = error.facts.get("row")
        raise Refusal(
            "llm.test-rows-unlike",
            f"{TEST_KEY}={place}: {'' if row is None else f'row {row} '}{said}; give rows that are read as those of "
            f"the training, or use `{TEST_KEY}=null dataset.split=0.1`",
            key=TEST_KEY,
            value=place,
            row=row,
            reason=messages.code_of(reason),
        ) from None
    return HeldOutRows([*read.rows.values()], [*read.rows]), read.ignored


def _synthetic(config: LlmConfig, data: SyntheticConfig, split: float | None) -> LoadedRows:
    """Generated rows. Those that are held out follow from a seed of their own: the training's would change them."""
    measured = held_out_rows.size(data.rows, split)
    rows = _generated(config, data.rows - measured, config.seed)
    if split is None:
        return LoadedRows(rows, wanted=data.rows)
    own = _generated(config, measured, held_out_rows.DRAWN_BY)
    return LoadedRows(rows, held_out=HeldOutRows(own, [*range(measured)]), wanted=data.rows)


def _generated(config: LlmConfig, count: int, seed: int) -> list[Row]:
    assert config.template_name is not None
    reader, rows = RowReader(config), list[Row]()
    for row in templates.examples(config.template_name, count, seed):
        if reader.pairs:
            asked: Message = {"role": "user", "content": row.prompt}
            answers = ([asked, {"role": "assistant", "content": text}] for text in (row.right, row.wrong))
            rows.append(reader.pair(pairs.Pair(*answers)))
        else:
            rows.append(reader.of_columns(dict(row.columns)))
    return rows


class ReadRows(NamedTuple):
    """Rows in the form of the engine, by their places in the data set, and what was left out (`LoadedRows`)."""

    rows: dict[int, Row]
    broken: int | None
    equal: int | None
    ignored: Mapping[str, int]


def _read(config: LlmConfig, data: StoredTextConfig, rows: Mapping[int, Any], beside: Mapping[str, int]) -> ReadRows:
    """Rows, by their places in the data set, in the form of the engine, and what was left out of them."""
    reader = RowReader(config)
    reader.unread.update(beside)
    converted, broken = dict[int, Row](), dict[int, ValueError]()
    for number, row in rows.items():
        try:
            converted[number] = reader.read(row)
        except ValueError as error:
            broken[number] = error
    skips = isinstance(data, ChatConfig) and data.skip_broken
    key, value = _key(data)
    if broken and not (skips and converted):
        first = min(broken)
        error = broken[first]
        reason = error.message if isinstance(error, Refusal) else str(error)
        changes = error.key if isinstance(error, Refusal) else None  # another key than that of the data has to change
        can_skip = converted and isinstance(data, ChatConfig)
        hint = ", which `dataset.skip_broken=true` leaves out" if can_skip else ""
        raise Refusal(
            "llm.broken-rows",
            f"{key}={value}: row {first + 1} {reason} ({len(broken)} of {len(rows)} rows are broken{hint})",
            key=changes or key,
            value=value,
            row=first + 1,
            reason=reason,
            broken=len(broken),
            rows=len(rows),
            skippable=len(converted),
        )
    kept, equal = converted, None
    if reader.pairs:
        kept = {number: row for number, row in converted.items() if not reader.is_equal(row)}
        equal = len(converted) - len(kept)
        if not kept:
            raise Refusal(
                "llm.pairs-equal",
                f"{key}={value}: in each of the {equal} pairs both answers are the same; give pairs that differ",
                key=key,
                value=value,
                pairs=equal,
            )
    return ReadRows(kept, len(broken) if skips else None, equal, dict(reader.unread))


class RowReader:
    """Brings rows into the form of a run's engine, and counts what it does not read."""

    def __init__(self, config: LlmConfig) -> None:
        self.config, self.pairs, self.unread = config, methods.chosen(config).pairs, Unread()
        self._data, self._template = config.dataset, templates.chosen(config)
        self._is_chat = isinstance(self._data, ChatConfig)
        self._named = self._data.columns if isinstance(self._data, StoredTextConfig) else {}
        self._written: ChatTemplate | None = None  # by the model's own template: of conversations, and of `model=hf`
        if self._is_chat or isinstance(config.model, HfConfig):
            self._written = chat.template(config)
        template = config.template_name
        self._reader = f"template={template}" if template else f"dataset={self._data.name}"

    def read(self, row: Any) -> Row:
        """A stored row. Refuses (ValueError) one that cannot be read as it is meant."""
        columns, unread = forms.columns_of(row, self._named), Unread()
        if self.pairs:
            found = pairs.pair(columns, self._reader)
            self._check_borne(columns)
            converted = self.pair(found, unread)
        elif self._is_chat:
            said = forms.conversation(columns)
            self._check_borne(columns)
            converted = self._conversation(said, unread)
        elif self._template is None or DATASETS[self._data.name].conversations:
            said = forms.conversation(columns)
            self._check_borne(columns)
            converted = self._share_gpt(said, unread)
        else:
            held = self._template_columns(columns)
            self._check_borne(columns)
            converted = self.of_columns(held)
        unread.add(columns)
        self.unread.update(dict.fromkeys(unread, 1))  # each once a row
        return converted

    def pair(self, found: pairs.Pair, unread: Unread | None = None) -> Row:
        """A pair as torchtune's messages, or as the pieces of both answers."""
        for said in found[:2]:
            turns.check_learnt(said[-1:], everything=False)
        if self._written is None:
            if found.tools:
                raise turns.unwritten("tools", None, instead=FOLDER)
            return {name: self._plain(said, unread) for name, said in zip(CHOICES, found[:2], strict=True)}
        row: Row = {}
        for name, said in zip(CHOICES, found[:2], strict=True):
            row[name] = self._conversation(Conversation(said, found.tools, name), unread)["pieces"]
        return row

    def is_equal(self, row: Row) -> bool:
        """True of a pair whose answers are the same tokens, of which no preference is learnt."""
        # Llama 3's form has a message without the white space around it
        strips = self._written is None and not isinstance(self.config.tokenizer, Qwen25TokenizerConfig)
        texts = ([str(part["content"]) for part in row[name]] for name in CHOICES)
        first, second = ([text.strip() for text in own] if strips else own for own in texts)
        return first == second

    def of_columns(self, row: Row) -> Row:
        """A row in the columns of the template in force."""
        if self._written is None:
            return row
        return self._conversation(chat.from_columns(self.config, row), None)

    def _check_borne(self, columns: Columns) -> None:
        """Refuse a row with a column that has a meaning, which this run would lose."""
        name = columns.bearing()
        if name is None:
            return
        remedy = override({name: None})
        is_read = name.lower().strip() in (*names.SYSTEM, *names.TOOLS, *names.HISTORY)
        other = ", or use `dataset=chat`, which reads it" if is_read and not (self._is_chat or self.pairs) else ""
        raise Refusal(
            "llm.row-bears",
            f"has {name}, which {self._reader} does not read here; leave it out, as `{remedy}`{other}",
            column=name,
            reader=self._reader,
            remedy=remedy,
        )

    def _conversation(self, said: Conversation, unread: Unread | None) -> Row:
        assert self._written is not None
        loss = self._data.loss if isinstance(self._data, ChatConfig) else ChatLoss.answers
        row, keys = chat.converted(said, self._written, loss)
        if unread is not None:
            unread.update(keys)
        return row

    def _plain(self, said: list[Message], unread: Unread | None) -> list[Message]:
        """Messages of role and content alone, as torchtune's forms have them."""
        settled, keys = turns.settle(said, None, "messages", FOLDER if self.pairs else CHAT)
        if unread is not None:
            unread.update(keys)
        for number, each in enumerate(settled, start=1):
            if each["role"] not in SHARE_GPT:
                raise Refusal(
                    "llm.row-role",
                    f"message {number} is of the role {each['role']}, which {self._reader} cannot read; "
                    "leave the row out, or use engine=trl with model=hf",
                    message=number,
                    role=each["role"],
                    reader=self._reader,
                )
        turns.check_learnt(settled, everything=False)
        return [{"role": each["role"], "content": each["content"]} for each in settled]

    def _share_gpt(self, said: Conversation, unread: Unread) -> Row:
        """A conversation in ShareGPT's form, in which human and gpt take turns; with a template, once each."""
        if self._written is not None:
            return self._conversation(said, unread)
        if said.tools:
            raise turns.unwritten("tools", None, instead=CHAT)
        settled = self._plain(said.messages, unread)
        if any(each.get("weight") == 0 for each in said.messages if each["role"] == "assistant"):
            raise turns.unwritten("weight", None, instead=CHAT)
        speakers = [SHARE_GPT[each["role"]] for each in settled]
        spoken = speakers[1:] if speakers[:1] == ["system"] else speakers
        takes_turns = len(spoken) > 1 and spoken == (["human", "gpt"] * len(spoken))[: len(spoken)]
        if not takes_turns:
            raise Refusal(
                "llm.row-no-conversation",
                "holds no conversation in which a user and the assistant take turns; "
                'write {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}, ...]}, '
                "or use `dataset=chat`",
            )
        if self._template is not None and len(spoken) != 2:
            raise Refusal(
                "llm.row-turns",
                f"holds {len(spoken)} turns, but {self._reader} takes a question and its answer; "
                "leave out the row, or the template",
                turns=len(spoken),
                reader=self._reader,
            )
        pairs = zip(speakers, settled, strict=True)
        return {"conversations": [{"from": speaker, "value": each["content"]} for speaker, each in pairs]}

    def _template_columns(self, columns: Columns) -> Row:
        """The columns that the template in force reads, with text in each."""
        assert self._template is not None
        wanted = self._template.columns
        missing = [name for name in wanted if not columns.present((name,))]
        if missing:
            raise forms.missing_columns(columns, missing, self._reader)
        row: Row = {name: columns.peek(name) for name in wanted}
        textless = [name for name, value in row.items() if not isinstance(value, str)]
        if textless:
            raise forms.no_text(textless)
        columns.pass_over(*wanted)
        if "instruction" in wanted:
            context = columns.get("input")
            if isinstance(context, list | dict):
                raise forms.no_text(["input"])
            row["input"] = "" if context is None else str(context)
        return row


def sample(config: LlmConfig, count: int) -> list[Row]:
    """The first `count` rows of a data set of the hub, in torchtune's columns."""
    reader = RowReader(config)
    return [reader.read(row) for row in hub.fetch(_stored(config), count)]


def texts(config: LlmConfig, rows: list[Row]) -> list[str]:
    """The text of each row with what its template puts around it, for the embedded tokenizer to be trained on."""
    template = templates.chosen(config)
    pairs = templates.INSTRUCT_PAIRS if methods.chosen(config).pairs else ()
    around = [*(template.around if template else ()), *pairs]
    return [part for row in rows for part in (*around, *strings(row))]


def strings(row: Row) -> list[str]:
    """The texts of a row, those of a conversation's turns too."""
    parts: list[str] = []
    for value in row.values():
        parts += [value] if isinstance(value, str) else [turn.get("content", turn.get("value")) for turn in value]
    return parts


def _stored(config: LlmConfig) -> StoredTextConfig:
    assert isinstance(config.dataset, StoredTextConfig)
    return config.dataset


def _key(data: StoredTextConfig) -> tuple[str, str]:
    """The key that says where the rows are, and its value."""
    return ("dataset", data.name) if data.data_files is None else (KEY, value_of(data.data_files))


def _unread_of_whole(config: LlmConfig, data: StoredTextConfig) -> dict[str, int] | None:
    """The columns that torchtune leaves of a whole data set of the hub, with its number of rows; None where the set
    has to be read by rows, as a column has another name, or a meaning."""
    if data.columns:
        return None
    template = templates.chosen(config)
    read = {"conversations"} if template is None or DATASETS[data.name].conversations else {*template.columns, "input"}
    place = hub.folder_of(str(data.source))
    try:
        information = json.loads((place / "dataset_info.json").read_text("utf-8")) if place else {}
        found, count = information["features"], information["splits"]["train"]["num_examples"]
    except (OSError, ValueError, LookupError, TypeError):
        return {}  # older caches say nothing
    bears = names.BEARING if "conversations" not in read else (*names.BEARING, *names.CHOSEN)
    if any(name in bears for name in found) or any(switch in json.dumps(found) for switch in turns.SWITCH_KEYS):
        return None
    return {name: count for name in found if name not in read}
