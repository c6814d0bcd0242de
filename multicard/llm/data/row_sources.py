"""The rows that a run is tuned on: generated, read or fetched, checked, sampled,
and in the form of its engine.

All of it happens in the controller, before any model is built, without torch. What cannot be used
is refused with ValueError, which names the key, or the row, and the remedy.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

from multicard import messages
from multicard.config.llm import LlmConfig
from multicard.config.llm_texts import DATASETS, ChatConfig, StoredTextConfig, SyntheticConfig
from multicard.llm import methods
from multicard.llm.data import columns as names
from multicard.llm.data import (
    held_out_rows,
    hub,
    learnt_rows,
    pairs,
    roles,
    table_headers,
    templates,
)
from multicard.llm.data.files import StoredRows, read_file, value_of
from multicard.llm.data.held_out_rows import HeldOutRows
from multicard.llm.data.row_folders import KEY, TEST_KEY
from multicard.llm.data.row_reader import RowReader
from multicard.llm.data.split_rows import split_rows
from multicard.llm.data.turn_tokens import TokenNotes
from multicard.llm.data.turns import Message
from multicard.messages import Refusal, as_text

Row = dict[str, Any]


class LoadedRows(NamedTuple):
    """What a run is tuned on.

    rows: in the form of its engine, in the seed's order; None for a whole data set of the hub,
    which torchtune reads by its name. broken: rows that `dataset.skip_broken` left out, None
    without the key. equal:
    pairs left out, as both answers are the same; None of other data. ignored: what nobody reads,
    with its count: columns, keys of messages as "messages.id", and files. available: rows that are
    stored; None of generated rows, of which there are any number.
    held_out: rows that are not trained on; None where none are. wanted: both kinds together, before
    any was left out.
    too_few: True where the default share was not held out, as too few rows would have been left.
    tokens: what was seen of special tokens; None without a chat template. by_place: rows of texts
    without roles.
    repeating: rows whose answer begins with the text that it answers.
    """

    rows: list[Row] | None
    broken: int | None = None
    equal: int | None = None
    ignored: Mapping[str, int] = {}
    available: int | None = None
    held_out: HeldOutRows | None = None
    wanted: int = 0
    too_few: bool = False
    tokens: TokenNotes | None = None
    by_place: int = 0
    repeating: int = 0


def load(config: LlmConfig) -> LoadedRows:
    """The run's rows. Refuses (ValueError) data that are not there, rows that cannot be read as
    they are meant, and a share of rows that leaves none to train or to measure on.
    """
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
    return (
        loaded if refusal is None and fills_a_step else _loaded(config, None)._replace(too_few=True)
    )


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
            # before the ranks do, each for itself, and before the data is identified
            hub.fetch(data, 0)
        ignored = _unread_of_whole(config, data)
        if ignored is not None:
            return LoadedRows(None, ignored=ignored)
    stored = read_file(data.data_files) if data.data_files else StoredRows(hub.fetch(data), {})
    rows = stored.rows
    key, value = _key(data)
    if not rows:
        raise Refusal(
            "llm.no-rows",
            f"{key}={value}: holds no rows; give a file with one row or more",
            key=key,
            value=value,
        )
    names.check_named(data.columns, f"{key}={value}", rows)
    table_headers.check_headers(config, data, stored, key)
    splits = split_rows(rows, data.columns)
    pool: Sequence[int] = range(len(rows)) if splits is None else splits.train
    available = len(pool)
    wanted = data.rows or len(pool)
    if wanted > available:
        raise Refusal(
            "llm.few-rows",
            f"dataset.rows={wanted}: {key}={value} holds {available}; "
            f"use `dataset.rows={available}` or fewer, or `dataset.rows=null` for all",
            key="dataset.rows",
            value=wanted,
            available=available,
        )
    # a share that the command names is drawn; the default
    # gives way to the rows that the data have for it
    by_column = splits is not None and split is not None and data.is_split_by_default
    drawn = held_out_rows.drawn(available, 0 if by_column else held_out_rows.size(wanted, split))
    measured = {pool[place] for place in drawn}
    others = [number for number in pool if number not in measured] if measured else pool
    if splits is not None:
        rows = [
            {name: value for name, value in row.items() if name != splits.column} for row in rows
        ]
        if by_column:
            measured = {*splits.test}
    order = Random(config.seed).sample(others, wanted - len(drawn))
    numbers = [*order, *sorted(measured)]
    read = _read(config, data, {number: rows[number] for number in numbers}, stored)
    trained = [row for number, row in read.rows.items() if number not in measured]
    held_out = None
    if data.test_files is not None:
        held_out, beside = _test_rows(config, data)
        read = read._replace(ignored=dict(Counter(read.ignored) + Counter(beside)))
    elif split is not None:
        kept = {number: row for number, row in read.rows.items() if number in measured}
        held_out = HeldOutRows([*kept.values()], [*kept], splits if by_column else None)
    ignored = read.ignored if splits is None else {**read.ignored, **splits.unread(by_column)}
    return LoadedRows(
        trained,
        read.broken,
        read.equal,
        ignored,
        available,
        held_out,
        wanted,
        tokens=read.tokens,
        by_place=read.by_place,
        repeating=read.repeating,
    )


def _test_rows(config: LlmConfig, data: StoredTextConfig) -> tuple[HeldOutRows, Mapping[str, int]]:
    """The rows of `dataset.test_files`, and what nobody reads of them. Refused (ValueError) where
    they cannot be read as those are that are trained on.
    """
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
    table_headers.check_headers(config, data, stored, TEST_KEY)
    rows = dict(enumerate(stored.rows))
    splits = split_rows(stored.rows, data.columns)
    beside = Counter[str]()
    if splits is not None:  # rows to train on among them are no test
        beside.update(splits.unread(tests=True))
        beside[f"rows to train on ({splits.column})"] = len(splits.train)
        rows = {
            number: {name: value for name, value in rows[number].items() if name != splits.column}
            for number in splits.test
        }
    try:
        read = _read(config, data, rows, stored, to_test=True)
    except Refusal as error:
        reason = error.facts.get("reason", error.message)
        # without its remedy, which would change how the other rows are read
        said = str(getattr(reason, "sentence", reason)).partition(";")[0]
        where = error.facts.get("where")
        raise Refusal(
            "llm.test-rows-unlike",
            f"{TEST_KEY}={place}: {f'{where} ' if where else ''}{said}; give rows that are read as"
            f" those of the training, or use `{TEST_KEY}=null dataset.split=0.1`",
            key=TEST_KEY,
            value=place,
            row=error.facts.get("row"),
            file=error.facts.get("file"),
            reason=messages.code_of(reason),
        ) from None
    ignored = dict(Counter(read.ignored) + beside)
    return HeldOutRows([*read.rows.values()], [*read.rows]), ignored


def _synthetic(config: LlmConfig, data: SyntheticConfig, split: float | None) -> LoadedRows:
    """Generated rows. Those that are held out follow from a seed of
    their own: the training's would change them.
    """
    measured = held_out_rows.size(data.rows, split)
    rows = _generated(config, data.rows - measured, config.seed)
    if split is None:
        return LoadedRows(rows, wanted=data.rows)
    own = _generated(config, measured, held_out_rows.DRAWN_BY)
    return LoadedRows(rows, held_out=HeldOutRows(own, [*range(measured)]), wanted=data.rows)


def _generated(config: LlmConfig, count: int, seed: int) -> list[Row]:
    assert config.template_name is not None
    reader = RowReader(config)
    rows = list[Row]()
    for row in templates.examples(config.template_name, count, seed):
        if reader.pairs:
            asked: Message = {"role": "user", "content": row.prompt}
            answers = (
                [asked, {"role": "assistant", "content": text}] for text in (row.right, row.wrong)
            )
            rows.append(reader.pair(pairs.Pair(*answers)))
        else:
            rows.append(reader.of_columns(dict(row.columns)))
    return rows


class ReadRows(NamedTuple):
    """Rows in the form of the engine, by their places in the data set,
    and what was left out (`LoadedRows`).
    """

    rows: dict[int, Row]
    broken: int | None
    equal: int | None
    ignored: Mapping[str, int]
    tokens: TokenNotes | None
    by_place: int
    repeating: int


def _read(
    config: LlmConfig,
    data: StoredTextConfig,
    rows: Mapping[int, Any],
    stored: StoredRows,
    to_test: bool = False,
) -> ReadRows:
    """Rows, by their places in the data set, in the form of the engine,
    and what was left out of them.

    Args:
        stored: all rows of the data set, of which `rows` are some.
    """
    reader = RowReader(config)
    reader.unread.update(stored.ignored)
    converted = dict[int, Row]()
    broken = dict[int, ValueError]()
    for number, row in rows.items():
        try:
            own = reader.read(row)
            if own is not None:
                converted[number] = own
        except ValueError as error:
            broken[number] = error
    skips = isinstance(data, ChatConfig) and data.skip_broken
    key, value = _key(data)
    if broken and not (skips and converted):
        first = min(broken)
        error = broken[first]
        file, number = stored.place(first)
        is_named = file is None or str(file) == (value_of(data.test_files) if to_test else value)
        where = f"row {number}" if is_named else f"row {number} of {file}"
        reason = error.message if isinstance(error, Refusal) else str(error)
        # another key than that of the data has to change
        changes = error.key if isinstance(error, Refusal) else None
        can_skip = converted and isinstance(data, ChatConfig)
        hint = ", which `dataset.skip_broken=true` leaves out" if can_skip else ""
        raise Refusal(
            "llm.broken-rows",
            f"{key}={value}: {where} {reason} ({len(broken)} of {len(rows)} rows are broken{hint})",
            key=changes or key,
            value=value,
            row=number,
            file=None if file is None else str(file),
            where=where,
            reason=reason,
            broken=len(broken),
            rows=len(rows),
            skippable=len(converted),
        )
    if reader.unlearnt and not converted:
        column = next(iter(reader.unlearnt))
        remedy = names.override({column: None})
        raise Refusal(
            "llm.rows-unlearnt",
            f"{key}={value}: none of its {len(rows)} rows is to be learnt, by {column}; give rows"
            f" that are, or leave the column out, as `{remedy}`",
            key=key,
            value=value,
            column=column,
            remedy=remedy,
        )
    for column, count in reader.unlearnt.items():
        reader.unread[f"rows that are not to be learnt ({column})"] += count
    kept = converted
    equal = None
    if reader.pairs:
        kept = {number: row for number, row in converted.items() if not reader.is_equal(row)}
        equal = len(converted) - len(kept)
        if not kept:
            raise Refusal(
                "llm.pairs-equal",
                f"{key}={value}: in each of the {equal} pairs both answers are the same; give pairs"
                " that differ",
                key=key,
                value=value,
                pairs=equal,
            )
    # the record is in UTF-8
    ignored = {as_text(name): count for name, count in reader.unread.items()}
    counted = len(broken) if skips else None
    return ReadRows(
        kept, counted, equal, ignored, reader.token_notes(), reader.by_place, reader.repeating
    )


def sample(config: LlmConfig, count: int) -> list[Row]:
    """The first `count` rows of a data set of the hub, in torchtune's columns."""
    reader = RowReader(config)
    rows = [reader.read(row) for row in hub.fetch(_stored(config), count)]
    return [row for row in rows if row is not None]


def texts(config: LlmConfig, rows: list[Row]) -> list[str]:
    """The text of each row with what its template puts around it,
    for the embedded tokenizer to be trained on.
    """
    template = templates.chosen(config)
    pairs = templates.INSTRUCT_PAIRS if methods.chosen(config).pairs else ()
    around = [*(template.around if template else ()), *pairs]
    found = []
    for row in rows:
        found.extend((*around, *strings(row)))
    return found


def strings(row: Row) -> list[str]:
    """The texts of a row, those of a conversation's turns too."""
    parts: list[str] = []
    for value in row.values():
        parts += (
            [value]
            if isinstance(value, str)
            else [turn.get("content", turn.get("value")) for turn in value]
        )
    return parts


def _stored(config: LlmConfig) -> StoredTextConfig:
    assert isinstance(config.dataset, StoredTextConfig)
    return config.dataset


def _key(data: StoredTextConfig) -> tuple[str, str]:
    """The key that says where the rows are, and its value."""
    return ("dataset", data.name) if data.data_files is None else (KEY, value_of(data.data_files))


def _unread_of_whole(config: LlmConfig, data: StoredTextConfig) -> dict[str, int] | None:
    """The columns that torchtune leaves of a whole data set of the hub, with its number of rows;
    None where the set has to be read by rows, as a column has another name, or a meaning.
    """
    if data.columns:
        return None
    template = templates.chosen(config)
    read = (
        {"conversations"}
        if template is None or DATASETS[data.name].conversations
        else {*template.columns, "input"}
    )
    place = hub.folder_of(str(data.source))
    try:
        information = json.loads((place / "dataset_info.json").read_text("utf-8")) if place else {}
        found = information["features"]
        count = information["splits"]["train"]["num_examples"]
    except (OSError, ValueError, LookupError, TypeError):
        return {}  # older caches say nothing
    bears = names.BEARING if "conversations" not in read else (*names.BEARING, *names.CHOSEN)
    bears = (*bears, *learnt_rows.LABELS, *learnt_rows.FLAGS, *learnt_rows.OPPOSITE_LABELS)
    if any(name in bears for name in found) or any(
        switch in json.dumps(found) for switch in roles.SWITCH_KEYS
    ):
        return None
    return {name: count for name in found if name not in read}
