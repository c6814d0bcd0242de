"""Load the rows that a run is tuned on: generate, read or fetch, check, sample and convert them.

The controller does all of this before any model is built, without torch. Data that cannot be used
are refused with a line that names the key, or the row, and the remedy.
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
from multicard.llm.data.row_reader import RowNotes, RowReader
from multicard.llm.data.split_rows import split_rows
from multicard.llm.data.turn_tokens import TokenNotes
from multicard.llm.data.turns import Message
from multicard.messages import Refusal, as_text

Row = dict[str, Any]


class LoadedRows(NamedTuple):
    """The rows that a run is tuned on.

    Fields:
        rows: the rows in the form of the run's engine, in the seed's order. None for a whole data
            set of the hub, which torchtune reads by its name.
        broken: the number of rows that `dataset.skip_broken` left out; None without the key.
        equal: the number of pairs left out because both answers are the same; None for other data.
        ignored: everything that is not read, with its count: columns, keys of messages as
            "messages.id", and files.
        available: the number of stored rows; None for generated rows, which are unlimited.
        held_out: the rows that are not trained on; None if there are none.
        wanted: the number of rows to train on and to hold out, before any was left out.
        too_few: the default share was not held out, because too few rows would have been left.
        tokens: counts of special tokens in rows; None without a chat template.
        notes: counts of rows that are likely to be a mistake.
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
    notes: RowNotes = RowNotes()


def load_rows(config: LlmConfig) -> LoadedRows:
    """Load the run's rows.

    Raises:
        Refusal: data are missing, rows cannot be read as intended, or the share to hold out leaves
            no rows to train on or to measure on.
    """
    split = config.dataset.split
    loaded = _load_and_hold_out(config, split)
    if split is None or loaded.rows is None or loaded.held_out is None:
        return loaded
    refusal = held_out_rows.refusal(split, loaded.wanted, loaded.rows, loaded.held_out.rows)
    if not config.dataset.is_split_by_default:
        if refusal is not None:
            raise refusal
        return loaded
    # If rows are packed, only the ranks know their number.
    fills_a_step = config.packed or len(loaded.rows) >= config.rows_of_a_step
    if refusal is None and fills_a_step:
        return loaded
    return _load_and_hold_out(config, None)._replace(too_few=True)


def _load_and_hold_out(config: LlmConfig, split: float | None) -> LoadedRows:
    """Load the run's rows, and hold out a share of them."""
    data = config.dataset
    if isinstance(data, SyntheticConfig):
        return _load_synthetic(config, data, split)
    data = _stored_config(config)
    # torchtune itself reads a whole data set of the hub, if no row is changed or left out.
    is_whole_set = (data.data_files or data.rows or data.test_files or split) is None
    if type(data) is StoredTextConfig and is_whole_set and DATASETS[data.name].has_answers:
        hub.check_source(data)
        if hub.revision(str(data.source)) is None:
            # Otherwise each rank would fetch them, and only after the data is identified.
            hub.fetch(data, 0)
        ignored = _unread_columns_of_set(config, data)
        if ignored is not None:
            return LoadedRows(None, ignored=ignored)
    stored = read_file(data.data_files) if data.data_files else StoredRows(hub.fetch(data), {})
    rows = stored.rows
    key, value = _data_key(data)
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
    candidates: Sequence[int] = range(len(rows)) if splits is None else splits.train
    available = len(candidates)
    wanted = data.rows or len(candidates)
    if wanted > available:
        raise Refusal(
            "llm.few-rows",
            f"dataset.rows={wanted}: {key}={value} holds {available}; "
            f"use `dataset.rows={available}` or fewer, or `dataset.rows=null` for all",
            key="dataset.rows",
            value=wanted,
            available=available,
        )
    # If the command names a share, it is drawn at random. Otherwise a split that the data define
    # takes the place of the default share.
    by_column = splits is not None and split is not None and data.is_split_by_default
    drawn_places = held_out_rows.drawn(
        available, 0 if by_column else held_out_rows.size(wanted, split)
    )
    held_out_numbers = {candidates[place] for place in drawn_places}
    other_numbers = (
        [number for number in candidates if number not in held_out_numbers]
        if held_out_numbers
        else candidates
    )
    if splits is not None:
        rows = [
            {name: value for name, value in row.items() if name != splits.column} for row in rows
        ]
        if by_column:
            held_out_numbers = {*splits.test}
    # The seed draws the rows to train on, and their order.
    training_numbers = Random(config.seed).sample(other_numbers, wanted - len(drawn_places))
    all_numbers = [*training_numbers, *sorted(held_out_numbers)]
    read_rows = _convert_rows(
        config, data, {number: rows[number] for number in all_numbers}, stored
    )
    trained = [row for number, row in read_rows.rows.items() if number not in held_out_numbers]
    held_out = None
    if data.test_files is not None:
        held_out, ignored_of_tests = _test_rows(config, data)
        read_rows = read_rows._replace(
            ignored=dict(Counter(read_rows.ignored) + Counter(ignored_of_tests))
        )
    elif split is not None:
        held_out_by_number = {
            number: row for number, row in read_rows.rows.items() if number in held_out_numbers
        }
        held_out = HeldOutRows(
            [*held_out_by_number.values()], [*held_out_by_number], splits if by_column else None
        )
    ignored = (
        read_rows.ignored if splits is None else {**read_rows.ignored, **splits.unread(by_column)}
    )
    return LoadedRows(
        trained,
        read_rows.broken,
        read_rows.equal,
        ignored,
        available,
        held_out,
        wanted,
        tokens=read_rows.tokens,
        notes=read_rows.notes,
    )


def _test_rows(config: LlmConfig, data: StoredTextConfig) -> tuple[HeldOutRows, Mapping[str, int]]:
    """Read the rows of `dataset.test_files`, and count everything in them that is not read.

    Raises:
        Refusal: they cannot be read in the same way as the rows to train on.
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
    ignored_rows = Counter[str]()
    if splits is not None:  # Rows that belong to a training split are not tested on.
        ignored_rows.update(splits.unread(tests=True))
        ignored_rows[f"rows to train on ({splits.column})"] = len(splits.train)
        rows = {
            number: {name: value for name, value in rows[number].items() if name != splits.column}
            for number in splits.test
        }
    try:
        read_rows = _convert_rows(config, data, rows, stored, to_test=True)
    except Refusal as error:
        reason = error.facts.get("reason", error.message)
        # Its remedy is left out: it would change how the rows to train on are read.
        problem = str(getattr(reason, "sentence", reason)).partition(";")[0]
        where = error.facts.get("where")
        raise Refusal(
            "llm.test-rows-unlike",
            f"{TEST_KEY}={place}: {f'{where} ' if where else ''}{problem}; give rows that are read"
            f" like the rows to train on, or use `{TEST_KEY}=null dataset.split=0.1`",
            key=TEST_KEY,
            value=place,
            row=error.facts.get("row"),
            file=error.facts.get("file"),
            reason=messages.code_of(reason),
        ) from None
    ignored = dict(Counter(read_rows.ignored) + ignored_rows)
    return HeldOutRows([*read_rows.rows.values()], [*read_rows.rows]), ignored


def _load_synthetic(config: LlmConfig, data: SyntheticConfig, split: float | None) -> LoadedRows:
    """Generate rows. Held-out rows have a fixed seed: the run's seed does not change them."""
    held_out_count = held_out_rows.size(data.rows, split)
    rows = _generate_rows(config, data.rows - held_out_count, config.seed)
    if split is None:
        return LoadedRows(rows, wanted=data.rows)
    held_out = _generate_rows(config, held_out_count, held_out_rows.HELD_OUT_SEED)
    return LoadedRows(
        rows, held_out=HeldOutRows(held_out, [*range(held_out_count)]), wanted=data.rows
    )


def _generate_rows(config: LlmConfig, count: int, seed: int) -> list[Row]:
    assert config.template_name is not None
    reader = RowReader(config)
    rows = list[Row]()
    for row in templates.examples(config.template_name, count, seed):
        if reader.pairs:
            question: Message = {"role": "user", "content": row.prompt}
            answers = (
                [question, {"role": "assistant", "content": text}]
                for text in (row.right, row.wrong)
            )
            rows.append(reader.pair(pairs.Pair(*answers)))
        else:
            rows.append(reader.of_columns(dict(row.columns)))
    return rows


class ReadRows(NamedTuple):
    """Rows in the form of the engine, by their places in the data set.

    The other fields are described in `LoadedRows`.
    """

    rows: dict[int, Row]
    broken: int | None
    equal: int | None
    ignored: Mapping[str, int]
    tokens: TokenNotes | None
    notes: RowNotes


def _convert_rows(
    config: LlmConfig,
    data: StoredTextConfig,
    rows: Mapping[int, Any],
    stored: StoredRows,
    to_test: bool = False,
) -> ReadRows:
    """Convert rows to the form of the engine, and count the rows that are left out.

    Args:
        rows: the rows to read, by their places in the data set.
        stored: all rows of the data set.
        to_test: the rows come from `dataset.test_files`.
    """
    reader = RowReader(config)
    reader.unread.update(stored.ignored)
    converted = dict[int, Row]()
    broken = dict[int, ValueError]()
    for number, row in rows.items():
        try:
            converted_row = reader.read(row)
            if converted_row is not None:
                converted[number] = converted_row
        except ValueError as error:
            broken[number] = error
    skips_broken = isinstance(data, ChatConfig) and data.skip_broken
    key, value = _data_key(data)
    if broken and not (skips_broken and converted):
        first = min(broken)
        error = broken[first]
        file, number = stored.place(first)
        is_named = file is None or str(file) == (value_of(data.test_files) if to_test else value)
        where = f"row {number}" if is_named else f"row {number} of {file}"
        reason = error.message if isinstance(error, Refusal) else str(error)
        # The refusal may ask to change another key than the one that names the data.
        other_key = error.key if isinstance(error, Refusal) else None
        can_skip = converted and isinstance(data, ChatConfig)
        hint = ", which `dataset.skip_broken=true` leaves out" if can_skip else ""
        raise Refusal(
            "llm.broken-rows",
            f"{key}={value}: {where} {reason} ({len(broken)} of {len(rows)} rows are broken{hint})",
            key=other_key or key,
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
            f"{key}={value}: {column} says of all {len(rows)} rows that they are not to be learnt;"
            f" give rows to learn, or leave the column out, as `{remedy}`",
            key=key,
            value=value,
            column=column,
            remedy=remedy,
        )
    for column, count in reader.unlearnt.items():
        reader.unread[f"rows that are not to be learnt ({column})"] += count
    kept_rows = converted
    equal = None
    if reader.pairs:
        kept_rows = {number: row for number, row in converted.items() if not reader.is_equal(row)}
        equal = len(converted) - len(kept_rows)
        if not kept_rows:
            raise Refusal(
                "llm.pairs-equal",
                f"{key}={value}: in each of the {equal} pairs both answers are the same; give pairs"
                " that differ",
                key=key,
                value=value,
                pairs=equal,
            )
    # Names of columns may hold surrogates, but the record is in UTF-8.
    ignored = {as_text(name): count for name, count in reader.unread.items()}
    counted = len(broken) if skips_broken else None
    return ReadRows(kept_rows, counted, equal, ignored, reader.token_notes(), reader.notes)


def sample(config: LlmConfig, count: int) -> list[Row]:
    """Return the first `count` rows of a data set of the hub, in torchtune's columns."""
    reader = RowReader(config)
    rows = [reader.read(row) for row in hub.fetch(_stored_config(config), count)]
    return [row for row in rows if row is not None]


def texts(config: LlmConfig, rows: list[Row]) -> list[str]:
    """Return the texts of rows and of the template around them, to train the embedded tokenizer."""
    template = templates.chosen(config)
    pairs = templates.INSTRUCT_AROUND_PAIRS if methods.chosen(config).pairs else ()
    template_texts = [*(template.around if template else ()), *pairs]
    all_texts = []
    for row in rows:
        all_texts.extend((*template_texts, *strings(row)))
    return all_texts


def strings(row: Row) -> list[str]:
    """Return the texts of a row, including the turns of a conversation."""
    parts: list[str] = []
    for value in row.values():
        parts += (
            [value]
            if isinstance(value, str)
            else [turn.get("content", turn.get("value")) for turn in value]
        )
    return parts


def _stored_config(config: LlmConfig) -> StoredTextConfig:
    assert isinstance(config.dataset, StoredTextConfig)
    return config.dataset


def _data_key(data: StoredTextConfig) -> tuple[str, str]:
    """Return the key that says where the rows are, and its value."""
    return ("dataset", data.name) if data.data_files is None else (KEY, value_of(data.data_files))


def _unread_columns_of_set(config: LlmConfig, data: StoredTextConfig) -> dict[str, int] | None:
    """Count the columns that torchtune ignores in a whole data set of the hub.

    Returns None if the set must be read row by row, because the command renames a column, or a
    column has a meaning that would be lost.
    """
    if data.columns:
        return None
    template = templates.chosen(config)
    read_columns = (
        {"conversations"}
        if template is None or DATASETS[data.name].conversations
        else {*template.columns, "input"}
    )
    cache_folder = hub.folder_of(str(data.source))
    try:
        information = (
            json.loads((cache_folder / "dataset_info.json").read_text("utf-8"))
            if cache_folder
            else {}
        )
        features = information["features"]
        count = information["splits"]["train"]["num_examples"]
    except (OSError, ValueError, LookupError, TypeError):
        return {}  # Older caches hold no such description.
    columns_with_meaning = (
        names.BEARING if "conversations" not in read_columns else (*names.BEARING, *names.CHOSEN)
    )
    columns_with_meaning = (
        *columns_with_meaning,
        *learnt_rows.LABELS,
        *learnt_rows.FLAGS,
        *learnt_rows.OPPOSITE_LABELS,
    )
    if any(name in columns_with_meaning for name in features) or any(
        switch in json.dumps(features) for switch in roles.SWITCH_KEYS
    ):
        return None
    return {name: count for name in features if name not in read_columns}
