"""The rows that a run is tuned on: generated, read or fetched, checked, sampled and brought into torchtune's columns.

All of it happens in the controller, before any model is built, without torch. What cannot be used is refused with
ValueError, which names the key, or the row, and the remedy.
"""

import json
import os
import re
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from multicard.config.llm import DATASETS, ChatConfig, LlmConfig, StoredTextConfig, SyntheticConfig
from multicard.llm import methods
from multicard.llm.data import chat, templates
from multicard.machine import network
from multicard.messages import Refusal

Row = dict[str, Any]

TURN = re.compile(r"\n\n(Human|Assistant):")
UNFINISHED = ".incomplete"  # ends the name of a revision's folder while the library fetches it
CHOICES = ("chosen", "rejected")


# A turn's keys for who speaks and what, and the speakers: ShareGPT's form and torchtune's
SHARED = ("from", "value", ("system", "human", "gpt"))
CHAT = ("role", "content", ("system", "user", "assistant"))


class RowPlace(NamedTuple):
    """A row of the data, as refusals name it: by the key of the data with its value, and by its number from 1."""

    key: str
    value: str
    row: int

    def __str__(self) -> str:
        return f"{self.key}={self.value}: row {self.row}"


def load(config: LlmConfig) -> tuple[list[Row] | None, int | None]:
    """The run's rows in torchtune's columns and in the seed's order, None for a whole data set of the hub, which
    torchtune reads by its name; and how many broken rows `dataset.skip_broken` left out, None without the key."""
    data, pairs = config.dataset, methods.chosen(config).pairs
    if isinstance(data, SyntheticConfig):
        assert config.template_name is not None
        examples = templates.examples(config.template_name, data.rows, config.seed)
        return [_pair(row.prompt, row.right, row.wrong) if pairs else dict(row.columns) for row in examples], None
    data = _stored(config)
    if type(data) is StoredTextConfig and (data.data_files or data.rows) is None and DATASETS[data.name].has_answers:
        check_source(data)
        if hub_revision(str(data.source)) is None:
            _fetch(data, 0)  # before the ranks do, each for itself, and before the data is identified
        return None, None
    rows = read_file(data.data_files) if data.data_files else _fetch(data)
    key, value = _key(data)
    if not rows:
        raise Refusal(
            "llm.no-rows", f"{key}={value}: holds no rows; give a file with one row or more", key=key, value=value
        )
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
    order = Random(config.seed).sample(range(available), wanted)
    if isinstance(data, ChatConfig):
        return _chats(config, data, {number: rows[number] for number in order})
    converted = {number: _convert(config, number, rows[number]) for number in sorted(order)}  # names the first bad row
    return [converted[number] for number in order], None


def _chats(config: LlmConfig, data: ChatConfig, rows: dict[int, Any]) -> tuple[list[Row], int | None]:
    """Rows, by their places in the data set, as the chat template writes them; and how many are left out as broken."""
    chat_template, converted, broken = chat.template(config), list[Row](), dict[int, str]()
    for number, row in rows.items():
        try:
            converted.append(chat.converted(row, chat_template, data.loss))
        except ValueError as error:
            broken[number] = str(error)
    if broken and not (data.skip_broken and converted):
        key, value = _key(data)
        first = min(broken)
        hint = ", which `dataset.skip_broken=true` leaves out" if converted else ""
        raise Refusal(
            "llm.broken-rows",
            f"{key}={value}: row {first + 1} {broken[first]} ({len(broken)} of {len(rows)} rows are broken{hint})",
            key=key,
            value=value,
            row=first + 1,
            reason=broken[first],
            broken=len(broken),
            rows=len(rows),
            skippable=len(converted),
        )
    return converted, len(broken) if data.skip_broken else None


def sample(config: LlmConfig, count: int) -> list[Row]:
    """The first `count` rows of a data set of the hub, in torchtune's columns."""
    return [_convert(config, number, row) for number, row in enumerate(_fetch(_stored(config), count))]


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
    return ("dataset", data.name) if data.data_files is None else ("dataset.data_files", data.data_files)


# ---- local files and data sets of the hub


@lru_cache(maxsize=1)  # the cells of a sweep mostly read the same file
def read_file(data_files: str) -> list[Any]:
    """The rows of a file of JSON, JSON lines or Parquet."""
    file, key = Path(data_files).expanduser(), "dataset.data_files"
    if not file.exists():
        raise Refusal(
            "llm.data-file-absent",
            f"{key}={data_files}: no such file; give a .json, .jsonl or .parquet file",
            key=key,
            value=data_files,
        )
    if not file.is_file():
        raise Refusal(
            "llm.data-file-folder",
            f"{key}={data_files}: is a folder; give a .json, .jsonl or .parquet file",
            key=key,
            value=data_files,
        )
    if file.suffix not in READERS:
        raise Refusal(
            "llm.data-file-suffix",
            f"{key}={data_files}: must end in one of {', '.join(READERS)}",
            key=key,
            value=data_files,
        )
    try:
        return READERS[file.suffix](file)
    except (OSError, ValueError, NotImplementedError, RecursionError) as error:  # Arrow's errors are of these types
        cause = str(error).partition("\n")[0]
        if isinstance(error, Refusal):
            cause = error.message
        elif isinstance(error, RecursionError):
            cause = "nested too deep"
        raise Refusal(
            "llm.data-file-unread",
            f"{key}={data_files}: cannot be read ({cause}); "
            "correct it (a .jsonl file has one object a line), or give another file",
            key=key,
            value=data_files,
            reason=cause,
        ) from None


def _read_jsonl(file: Path) -> list[Any]:
    rows = []
    for number, line in enumerate(file.read_text("utf-8-sig").split("\n"), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError):
                raise Refusal("llm.bad-line", f"line {number} is not JSON, or nested too deep", line=number) from None
    return rows


def _read_json(file: Path) -> list[Any]:
    rows = json.loads(file.read_text("utf-8-sig") or "[]")
    if not isinstance(rows, list):
        raise Refusal("llm.no-list", "it holds no list of rows, as [{...}, ...]")
    return rows


def _read_parquet(file: Path) -> list[Any]:
    import pyarrow.parquet as pq

    return pq.read_table(file).to_pylist()


READERS = {".json": _read_json, ".jsonl": _read_jsonl, ".parquet": _read_parquet}


def check_source(data: StoredTextConfig) -> None:
    """Refuse a data set that is neither a file nor on the hub."""
    if data.source is None:
        raise Refusal(
            "llm.no-data-source",
            f"dataset={data.name}: names neither a file nor a data set of the hub; "
            "set `dataset.data_files=FILE` (.json, .jsonl or .parquet), or `dataset.source=NAME`",
            key="dataset",
            value=data.name,
        )


def hub_revision(source: str) -> str | None:
    """The latest revision of a data set of the hub in the cache of the `datasets` library; None if it has none."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    cache = Path(os.environ.get("HF_DATASETS_CACHE") or Path(home) / "datasets").expanduser()
    wanted = _bare(source)  # the library writes a name in its own way: "org/My-Set" as "org___my-set"
    folders = [folder for folder in cache.glob("*") if _bare(folder.name) == wanted]
    revisions = [path for folder in folders for path in folder.glob("*/*/*") if path.is_dir()]
    whole = [path for path in revisions if path.suffix != UNFINISHED]
    return max(whole, key=lambda path: path.stat().st_mtime).name if whole else None


def _bare(name: str) -> str:
    return name.replace("/", "").replace("_", "").lower()


def _fetch(data: StoredTextConfig, count: int | None = None) -> list[Row]:
    """The training rows of a data set of the hub, from the library's cache where it was fetched before."""
    check_source(data)
    import datasets
    import datasets.config
    from huggingface_hub import constants, logging

    datasets.logging.set_verbosity_error()  # it tells of each retry, and where it uses its cache
    logging.set_verbosity_error()
    source = str(data.source)
    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    offline = any(before) or hub_revision(source) is not None
    why = None if offline else network.problem(constants.ENDPOINT)
    if why is not None:
        raise _unfetched(source, why, f"{constants.ENDPOINT}: ")
    try:
        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = offline
        rows: Any = datasets.load_dataset(source, revision=data.revision, split="train")
        return (rows if count is None else rows.select(range(min(count, len(rows))))).to_list()
    except Exception as error:  # of several libraries, which have no common base
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise _unfetched(source, cause) from None
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _unfetched(source: str, reason: str, place: str = "") -> Refusal:
    return Refusal(
        "llm.data-unfetched",
        f"dataset.source={source}: could not be fetched ({place}{reason}); "
        "check that the machine has network, or set `dataset.data_files=FILE`",
        key="dataset.source",
        value=source,
        reason=reason,
    )


# ---- rows in torchtune's columns


def _convert(config: LlmConfig, number: int, row: Any) -> Row:
    """A row in torchtune's columns."""
    where = RowPlace(*_key(_stored(config)), number + 1)
    template = templates.chosen(config)
    reader = f"template={config.template_name}" if template else f"dataset={config.dataset.name}"
    if methods.chosen(config).pairs:
        return _preference(where, reader, row)
    if template is None or DATASETS[config.dataset.name].conversations:
        return _conversation(where, reader, row, single=template is not None)
    _check_columns(where, reader, row, template.columns, of_text=True)
    columns = {name: row[name] for name in template.columns}
    return columns | {"input": str(row.get("input") or "")} if "instruction" in columns else columns


def _check_columns(where: RowPlace, reader: str, row: Any, wanted: tuple[str, ...], of_text: bool = False) -> None:
    """Refuse a row without the columns, naming those missing and those there, or without text in them."""
    if not isinstance(row, dict):
        raise Refusal(
            "llm.row-no-object",
            f"{where} is not an object with columns; write each row as {{...}}",
            **where._asdict(),
        )
    missing = [name for name in wanted if name not in row]
    if missing:
        raise Refusal(
            "llm.row-columns",
            f"{where} has no column {', '.join(missing)} for {reader} (found: {', '.join(row) or 'none'}); "
            "rename the columns, or choose another template or dataset",
            **where._asdict(),
            missing=missing,
            found=list(row),
            reader=reader,
        )
    textless = [name for name in wanted if of_text and not isinstance(row[name], str)]
    if textless:
        raise Refusal(
            "llm.row-no-text",
            f"{where} holds no text in {', '.join(textless)}; give text in every row",
            **where._asdict(),
            columns=textless,
        )


def _turns(turns: Any, form: tuple[str, str, tuple[str, ...]]) -> list[dict[str, str]]:
    """The turns of a conversation, their other columns left out; none where they have not this form."""
    who, text, speakers = form
    fits = isinstance(turns, list) and all(
        isinstance(turn, dict) and turn.get(who) in speakers and isinstance(turn.get(text), str) for turn in turns
    )
    return [{who: turn[who], text: turn[text]} for turn in turns] if fits else []


def _conversation(where: RowPlace, reader: str, row: Any, single: bool) -> Row:
    """A conversation in ShareGPT's form, in which human and gpt take turns; `single`: once each."""
    _check_columns(where, reader, row, ("conversations",))
    turns = _turns(row["conversations"], SHARED)
    speakers = [turn["from"] for turn in turns if turn["from"] != "system"]
    takes_turns = len(speakers) > 1 and speakers == (["human", "gpt"] * len(speakers))[: len(speakers)]
    if not takes_turns:
        raise Refusal(
            "llm.row-no-conversation",
            f"{where} holds no conversation in conversations; "
            'write [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}, ...]',
            **where._asdict(),
        )
    if single and len(speakers) != 2:
        raise Refusal(
            "llm.row-turns",
            f"{where} holds {len(speakers)} turns, but {reader} takes a question and its answer; "
            "leave out the row, or the template",
            **where._asdict(),
            turns=len(speakers),
            reader=reader,
        )
    return {"conversations": turns}


def _preference(where: RowPlace, reader: str, row: Any) -> Row:
    """A pair in torchtune's chat form; flat prompt, chosen, rejected are brought into it."""
    _check_columns(where, reader, row, CHOICES)
    if all(isinstance(row[name], str) for name in CHOICES):
        _check_columns(where, reader, row, ("prompt",), of_text=True)
        return _pair(row["prompt"], row["chosen"], row["rejected"])
    pair = {name: _turns(row[name], CHAT) for name in CHOICES}
    for name, turns in pair.items():
        if not turns or turns[-1]["role"] != "assistant":
            raise Refusal(
                "llm.row-no-answer",
                f"{where} holds no answered conversation in {name}; "
                'write [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}], or plain text',
                **where._asdict(),
                column=name,
            )
    return pair


def _pair(prompt: str, chosen: str, rejected: str) -> Row:
    turns = _turns_of_prompt(prompt)
    answers = zip(CHOICES, (chosen, rejected), strict=True)
    return {name: [*turns, {"role": "assistant", "content": answer.strip()}] for name, answer in answers}


def _turns_of_prompt(prompt: str) -> list[dict[str, str]]:
    """A prompt as messages; one in HH-RLHF's form ("\\n\\nHuman: ... \\n\\nAssistant:") is split into its turns."""
    parts = TURN.split(prompt if prompt.startswith("\n") else f"\n\n{prompt}")
    if len(parts) == 1:
        return [{"role": "user", "content": prompt.strip()}]
    roles = {"Human": "user", "Assistant": "assistant"}
    messages = zip(parts[1::2], parts[2::2], strict=True)
    return [{"role": roles[speaker], "content": text.strip()} for speaker, text in messages if text.strip()]
