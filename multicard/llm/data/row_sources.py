"""The rows that a run is tuned on: generated, read or fetched, checked, sampled and brought into torchtune's columns.

All of it happens in the controller, before any model is built, without torch.
"""

import re
from random import Random
from typing import Any

from multicard.config.keys import require
from multicard.config.llm import DATASETS, LlmConfig, StoredTextConfig, SyntheticConfig
from multicard.llm import methods
from multicard.llm.data import row_files, templates
from multicard.llm.data.content import hub_revision
from multicard.machine import network

Row = dict[str, Any]

TURN = re.compile(r"\n\n(Human|Assistant):")


def load(config: LlmConfig) -> list[Row] | None:
    """The run's rows in torchtune's columns and in the seed's order; None for a whole data set of the hub, which
    torchtune reads by its name.

    Raises:
        ValueError: what is absent, empty or cannot be read, with the key and the remedy.
    """
    data, pairs = config.dataset, methods.chosen(config).pairs
    if isinstance(data, SyntheticConfig):
        assert config.template_name is not None
        examples = templates.examples(config.template_name, data.rows, config.seed)
        return [_pair(row.prompt, row.right, row.wrong) if pairs else dict(row.columns) for row in examples]
    data = _stored(config)
    if data.data_files is None and data.rows is None and DATASETS[data.name].has_answers:
        check_source(data)
        if hub_revision(str(data.source)) is None:
            _fetch(data, 0)  # before the ranks do, each for itself, and before the data is identified
        return None
    rows = row_files.read(data.data_files) if data.data_files else _fetch(data)
    require(bool(rows), f"{_key(data)}: holds no rows; give a file with one row or more")
    available, wanted = len(rows), data.rows or len(rows)
    remedy = f"use {available} or fewer, or null for all"
    require(wanted <= available, f"dataset.rows={wanted}: {_key(data)} holds {available}; {remedy}")
    order = Random(config.seed).sample(range(available), wanted)
    converted = {number: _convert(config, number, rows[number]) for number in sorted(order)}  # names the first bad row
    return [converted[number] for number in order]


def sample(config: LlmConfig, count: int) -> list[Row]:
    """The first `count` rows of a data set of the hub, in torchtune's columns."""
    return [_convert(config, number, row) for number, row in enumerate(_fetch(_stored(config), count))]


def texts(config: LlmConfig, rows: list[Row]) -> list[str]:
    """The text of each row with what its template puts around it, for the embedded tokenizer to be trained on."""
    template = templates.chosen(config)
    pairs = templates.INSTRUCT_PAIRS if methods.chosen(config).pairs else ()
    around = [*(template.around if template else ()), *pairs]
    parts: list[str] = []
    for row in rows:
        parts += around
        for value in row.values():
            parts += [value] if isinstance(value, str) else [turn.get("content", turn.get("value")) for turn in value]
    return parts


def _stored(config: LlmConfig) -> StoredTextConfig:
    assert isinstance(config.dataset, StoredTextConfig)
    return config.dataset


def _key(data: StoredTextConfig) -> str:
    return f"dataset={data.name}" if data.data_files is None else f"dataset.data_files={data.data_files}"


def check_source(data: StoredTextConfig) -> None:
    """Refuse a data set that is neither a file nor on the hub."""
    remedy = "set dataset.data_files to a .json, .jsonl or .parquet file"
    require(data.source is not None, f"dataset={data.name}: is not on the hub in a form that can be read; {remedy}")


def _fetch(data: StoredTextConfig, count: int | None = None) -> list[Row]:
    """The training rows of a data set of the hub, from the library's cache where it was fetched before."""
    check_source(data)
    import datasets
    import datasets.config
    from huggingface_hub import constants, logging

    datasets.logging.set_verbosity_error()  # it tells of each retry, and where it uses its cache
    logging.set_verbosity_error()
    source, remedy = str(data.source), "see that the machine has network, or set dataset.data_files to a local file"
    key = f"dataset.source={source}: could not be fetched"
    before = datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE
    offline = any(before) or hub_revision(source) is not None
    why = None if offline else network.problem(constants.ENDPOINT)
    require(why is None, f"{key} ({constants.ENDPOINT}: {why}); {remedy}")
    try:
        datasets.config.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE = offline
        rows: Any = datasets.load_dataset(source, revision=data.revision, split="train")
        return (rows if count is None else rows.select(range(min(count, len(rows))))).to_list()
    except Exception as error:  # of several libraries, which have no common base
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{key} ({cause}); {remedy}") from None
    finally:
        datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE = before


def _convert(config: LlmConfig, number: int, row: Any) -> Row:
    """A row in torchtune's columns.

    Raises:
        ValueError: where it cannot be read, with the row's number and the remedy.
    """
    where = f"{_key(_stored(config))}: row {number + 1}"
    template = templates.chosen(config)
    reader = f"template={config.template_name}" if template else f"dataset={config.dataset.name}"
    if methods.chosen(config).pairs:
        return _preference(where, reader, row)
    if template is None or DATASETS[config.dataset.name].conversations:
        return _conversation(where, reader, row, single=template is not None)
    _check_columns(where, reader, row, template.columns)
    _check_text(where, row, template.columns)
    columns = {name: row[name] for name in template.columns}
    return columns | {"input": str(row.get("input") or "")} if "instruction" in columns else columns


def _check_columns(where: str, reader: str, row: Any, wanted: tuple[str, ...]) -> None:
    """Refuse a row without the columns, naming those missing and those there."""
    require(isinstance(row, dict), f"{where} is not an object with columns; write each row as {{...}}")
    missing = [name for name in wanted if name not in row]
    there = ", ".join(row) or "none"
    remedy = "rename the columns, or choose another template or dataset"
    require(not missing, f"{where} has no column {', '.join(missing)} for {reader} (found: {there}); {remedy}")


def _check_text(where: str, row: Row, columns: tuple[str, ...]) -> None:
    for name in columns:
        require(isinstance(row[name], str), f"{where} holds no text in {name}; give text in every row")


def _conversation(where: str, reader: str, row: Any, single: bool) -> Row:
    """A conversation in ShareGPT's form, in which human and gpt take turns; `single`: once each."""
    _check_columns(where, reader, row, ("conversations",))
    turns = row["conversations"]
    valid = _are_turns(turns, "from", "value", {"system", "human", "gpt"})
    speakers = [turn["from"] for turn in turns if turn["from"] != "system"] if valid else []
    valid = len(speakers) > 1 and speakers == (["human", "gpt"] * len(speakers))[: len(speakers)]
    remedy = 'write [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}, ...]'
    require(valid, f"{where} holds no conversation in conversations; {remedy}")
    problem = f"{where} holds {len(speakers)} turns, and {reader} takes a question and its answer"
    require(len(speakers) == 2 or not single, f"{problem}; leave the row out, or use template=null")
    return {"conversations": [{"from": turn["from"], "value": turn["value"]} for turn in turns]}


def _preference(where: str, reader: str, row: Any) -> Row:
    """A pair in torchtune's chat form; flat prompt, chosen, rejected are brought into it."""
    _check_columns(where, reader, row, ("chosen", "rejected"))
    if isinstance(row["chosen"], str) and isinstance(row["rejected"], str):
        _check_columns(where, reader, row, ("prompt",))
        _check_text(where, row, ("prompt",))
        return _pair(row["prompt"], row["chosen"], row["rejected"])
    remedy = 'write [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}], or plain text'
    pair = {}
    for name in ("chosen", "rejected"):
        turns = row[name]
        valid = _are_turns(turns, "role", "content", {"system", "user", "assistant"})
        valid = valid and turns[-1]["role"] == "assistant"
        require(valid, f"{where} holds no conversation in {name}; {remedy}")
        pair[name] = [{"role": turn["role"], "content": turn["content"]} for turn in turns]
    return pair


def _are_turns(turns: Any, speaker: str, text: str, speakers: set[str]) -> bool:
    """True for turns of a conversation, with the columns `speaker` and `text`."""
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, dict) for turn in turns):
        return False
    return all(turn.get(speaker) in speakers and isinstance(turn.get(text), str) for turn in turns)


def _pair(prompt: str, chosen: str, rejected: str) -> Row:
    turns = _turns(prompt)
    answers = {"chosen": chosen, "rejected": rejected}
    return {name: [*turns, {"role": "assistant", "content": answer.strip()}] for name, answer in answers.items()}


def _turns(prompt: str) -> list[dict[str, str]]:
    """A prompt as messages; one in HH-RLHF's form ("\\n\\nHuman: ... \\n\\nAssistant:") is split into its turns."""
    parts = TURN.split(prompt if prompt.startswith("\n") else f"\n\n{prompt}")
    if len(parts) == 1:
        return [{"role": "user", "content": prompt.strip()}]
    roles = {"Human": "user", "Assistant": "assistant"}
    messages = zip(parts[1::2], parts[2::2], strict=True)
    return [{"role": roles[speaker], "content": text.strip()} for speaker, text in messages if text.strip()]
