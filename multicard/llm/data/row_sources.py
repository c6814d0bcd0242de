"""The rows that a run is tuned on: made, read or fetched, checked, sampled and brought into torchtune's columns.

All of it happens in the controller, before any model is built, without torch.
"""

import json
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

from multicard.config.keys import require
from multicard.config.llm import LlmConfig, MethodName, StoredTextConfig, SyntheticConfig, TemplateName, TextName
from multicard.llm.data import synthetic

Row = dict[str, Any]

# What is read of each row; `input` of instruct may be absent or empty. None: conversations.
COLUMNS: dict[TemplateName | None, tuple[str, ...]] = {
    TemplateName.instruct: ("instruction", "output"),
    TemplateName.grammar: ("input", "output"),
    TemplateName.summarize: ("dialogue", "summary"),
    None: ("conversations",),
}
# The text that torchtune's templates put around a prompt, for the embedded tokenizer to be trained on.
TAGS: dict[TemplateName | None, tuple[str, ...]] = {
    TemplateName.instruct: (
        "Below is an instruction that describes a task, paired with an input that provides further context. "
        "Write a response that appropriately completes the request.\n\n### Instruction:\n",
        "\n\n### Input:\n",
        "\n\n### Response:\n",
    ),
    TemplateName.grammar: ("Correct this to standard English: ", "\n---\nCorrected: "),
    TemplateName.summarize: ("Summarize this dialogue:\n", "\n---\nSummary:\n"),
    None: (),
}
# torchtune has Alpaca's template inside its data set alone: for pairs it is given as a prompt's beginning and end.
INSTRUCT_PAIRS = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n",
    "\n\n### Response:\n",
)
FROM = {"system", "human", "gpt"}  # who speaks in ShareGPT's form
ROLES = {"system", "user", "assistant"}
TURN = re.compile(r"\n\n(Human|Assistant):")


def load(config: LlmConfig) -> list[Row] | None:
    """The run's rows in torchtune's columns and in the seed's order; None for a whole data set of the hub, which
    torchtune reads by its name.

    Raises:
        ValueError: what is absent, empty or cannot be read, with the key and the remedy.
    """
    data, pairs = config.dataset, config.method.name is MethodName.dpo
    if isinstance(data, SyntheticConfig):
        assert config.template_name is not None
        made = synthetic.rows(config.template_name, data.rows, config.seed)
        return [_pair(row.prompt, row.right, row.wrong) if pairs else dict(row.columns) for row in made]
    assert isinstance(data, StoredTextConfig)
    if data.data_files is None and data.rows is None and data.name is not TextName.preference:
        _check_source(config)
        return None
    found = _read(str(Path(data.data_files).expanduser()), data.data_files) if data.data_files else _fetch(config)
    require(bool(found), f"{_key(config)}: holds no rows; give a file with one row or more")
    available, wanted = len(found), data.rows or len(found)
    remedy = f"use {available} or fewer, or null for all"
    require(wanted <= available, f"dataset.rows={wanted}: {_key(config)} holds {available}; {remedy}")
    order = Random(config.seed).sample(range(available), wanted)
    convert = _preference if pairs else READ[config.template_name]
    kept = {number: convert(config, number, found[number]) for number in sorted(order)}  # the first bad row is named
    return [kept[number] for number in order]


def texts(config: LlmConfig, rows: list[Row]) -> list[str]:
    """What the embedded tokenizer is trained on: the text of each row with what its template puts around it."""
    around = [*TAGS[config.template_name], *(INSTRUCT_PAIRS if config.method.name is MethodName.dpo else ())]
    found: list[str] = []
    for row in rows:
        found += around
        for value in row.values():
            found += [value] if isinstance(value, str) else [part.get("content", part.get("value")) for part in value]
    return found


def _key(config: LlmConfig) -> str:
    data = config.dataset
    assert isinstance(data, StoredTextConfig)
    return f"dataset={data.name}" if data.data_files is None else f"dataset.data_files={data.data_files}"


def _check_source(config: LlmConfig) -> None:
    data = config.dataset
    assert isinstance(data, StoredTextConfig)
    remedy = "set dataset.data_files to a .json, .jsonl or .parquet file"
    require(data.source is not None, f"dataset={data.name}: is not on the hub in a form that can be read; {remedy}")


def sample(config: LlmConfig, count: int) -> list[Row]:
    """The first `count` rows of a data set of the hub, in torchtune's columns."""
    return [READ[config.template_name](config, number, row) for number, row in enumerate(_fetch(config, count))]


def _fetch(config: LlmConfig, count: int | None = None) -> list[Row]:
    """The training rows of a data set of the hub, from its cache where it was fetched before."""
    _check_source(config)
    import datasets

    data = config.dataset
    assert isinstance(data, StoredTextConfig) and data.source is not None
    try:
        found: Any = datasets.load_dataset(data.source, split="train")
        return (found if count is None else found.select(range(min(count, len(found))))).to_list()
    except (OSError, ValueError, RuntimeError) as error:
        remedy = "see that the machine has network, or set dataset.data_files to a local file"
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"dataset.source={data.source}: could not be fetched ({said}); {remedy}") from None


@lru_cache(maxsize=1)  # the cells of a sweep mostly read the same file
def _read(path: str, given: str) -> list[Any]:
    file, key = Path(path), f"dataset.data_files={given}"
    require(file.exists(), f"{key}: no such file; give a .json, .jsonl or .parquet file")
    require(file.is_file(), f"{key}: is a folder; give a .json, .jsonl or .parquet file")
    require(file.suffix in SUFFIXES, f"{key}: must end in one of {', '.join(SUFFIXES)}")
    return SUFFIXES[file.suffix](file, key)


def _jsonl(file: Path, key: str) -> list[Any]:
    found = []
    for number, line in enumerate(_text(file, key).split("\n"), start=1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except ValueError:
                raise ValueError(f"{key}: line {number} is not JSON; mend or remove it") from None
    return found


def _json(file: Path, key: str) -> list[Any]:
    try:
        found = json.loads(_text(file, key) or "[]")
    except ValueError:
        raise ValueError(f"{key}: is not JSON; for one object a line, name it .jsonl") from None
    require(isinstance(found, list), f"{key}: must hold a list of rows, as [{{...}}, ...]")
    return found


def _text(file: Path, key: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{key}: cannot be read as UTF-8 text ({error}); give another file") from None


def _parquet(file: Path, key: str) -> list[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(file).to_pylist()
    except (OSError, pa.ArrowException) as error:
        said = (str(error).splitlines() or [""])[0]
        raise ValueError(f"{key}: is not a whole Parquet file ({said}); write it again") from None


SUFFIXES: dict[str, Callable[[Path, str], list[Any]]] = {".json": _json, ".jsonl": _jsonl, ".parquet": _parquet}


def _columns(config: LlmConfig, number: int, row: Any, wanted: tuple[str, ...]) -> None:
    """Refuse a row without the columns, naming those missing and those found."""
    where = f"{_key(config)}: row {number + 1}"
    require(isinstance(row, dict), f"{where} is not an object with columns; write each row as {{...}}")
    missing = [name for name in wanted if name not in row]
    reader = f"template={config.template_name}" if config.template_name else f"dataset={config.dataset.name}"
    found = ", ".join(row) or "none"
    remedy = "rename the columns, or choose another template or dataset"
    require(not missing, f"{where} has no column {', '.join(missing)} for {reader} (found: {found}); {remedy}")


def _strings(config: LlmConfig, number: int, row: Any) -> Row:
    wanted = COLUMNS[config.template_name]
    _columns(config, number, row, wanted)
    for name in wanted:
        is_text = isinstance(row[name], str)
        remedy = "give text in every row"
        require(is_text, f"{_key(config)}: row {number + 1} holds no text in {name}; {remedy}")
    kept = {name: row[name] for name in wanted}
    return kept | {"input": str(row.get("input") or "")} if "instruction" in kept else kept


def _conversation(config: LlmConfig, number: int, row: Any) -> Row:
    _columns(config, number, row, ("conversations",))
    turns = row["conversations"]
    whole = isinstance(turns, list) and turns and all(isinstance(t, dict) for t in turns)
    whole = whole and all(t.get("from") in FROM and isinstance(t.get("value"), str) for t in turns)
    speakers = [turn["from"] for turn in turns if turn["from"] != "system"] if whole else []
    whole = whole and len(speakers) > 1 and speakers == (["human", "gpt"] * len(speakers))[: len(speakers)]
    remedy = 'write [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}, ...]'
    require(bool(whole), f"{_key(config)}: row {number + 1} holds no conversation in conversations; {remedy}")
    return {"conversations": [{"from": turn["from"], "value": turn["value"]} for turn in turns]}


def _preference(config: LlmConfig, number: int, row: Any) -> Row:
    """A pair in torchtune's chat form; flat prompt, chosen, rejected are brought into it."""
    _columns(config, number, row, ("chosen", "rejected"))
    if isinstance(row["chosen"], str) and isinstance(row["rejected"], str):
        _columns(config, number, row, ("prompt",))
        prompt = row["prompt"]
        require(isinstance(prompt, str), f"{_key(config)}: row {number + 1} holds no text in prompt; give text")
        return _pair(prompt, row["chosen"], row["rejected"])
    remedy = 'write [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}], or plain text'
    kept = {}
    for name in ("chosen", "rejected"):
        turns = row[name]
        whole = isinstance(turns, list) and turns and all(isinstance(t, dict) for t in turns)
        whole = whole and all(t.get("role") in ROLES and isinstance(t.get("content"), str) for t in turns)
        whole = whole and turns[-1]["role"] == "assistant"
        require(bool(whole), f"{_key(config)}: row {number + 1} holds no conversation in {name}; {remedy}")
        kept[name] = [{"role": turn["role"], "content": turn["content"]} for turn in turns]
    return kept


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
    said = zip(parts[1::2], parts[2::2], strict=True)
    return [{"role": roles[who], "content": text.strip()} for who, text in said if text.strip()]


READ: dict[TemplateName | None, Callable[[LlmConfig, int, Any], Row]] = {
    None: _conversation,
    TemplateName.instruct: _strings,
    TemplateName.grammar: _strings,
    TemplateName.summarize: _strings,
}
