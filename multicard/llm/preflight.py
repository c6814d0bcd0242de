"""Refusals before any model is built, and the inputs of a run: rows,
tokenizer and what identifies them. No torch.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multicard.config.llm import LlmConfig
from multicard.config.llm_models import HfConfig
from multicard.config.llm_texts import ChatConfig, StoredTextConfig, SyntheticConfig
from multicard.config.llm_tokenizers import (
    EmbeddedTokenizerConfig,
    Llama3TokenizerConfig,
    Qwen25TokenizerConfig,
)
from multicard.config.sweeps import starts_nothing
from multicard.llm import axes, engines, methods, models, quantised, whole_steps
from multicard.llm.data import (
    chat,
    columns,
    files,
    held_out_rows,
    hub,
    row_sources,
    templates,
    tokenizer,
)
from multicard.llm.data.held_out_rows import HeldOutRows
from multicard.messages import Message, Refusal
from multicard.records.content import Blob, text_blob

TOKENIZER_ROWS = 2000  # that the embedded tokenizer is trained on, at most
IDENTIFYING_ROWS = 20  # of each template, which tell one version of the generator from another


@dataclass(frozen=True)
class Inputs:
    """Inputs of a run beside its configuration.

    rows: None for a whole data set of the hub. broken, equal, ignored: what was left out of them
    (`LoadedRows`).
    last_alone: rows with several answers, of which only the last is learnt.
    token_ranks: the embedded tokenizer's tokens, by rank; None for another tokenizer.
    held_out: rows that are not trained on. are_trained: of each,
    whether it is equal to a row that is.
    """

    rows: list[row_sources.Row] | None
    token_ranks: list[bytes] | None
    vocabulary: int
    broken: int | None = None
    equal: int | None = None
    ignored: Mapping[str, int] = field(default_factory=dict)
    last_alone: int = 0
    held_out: HeldOutRows | None = None
    are_trained: list[bool] = field(default_factory=list)

    @property
    def left(self) -> dict[str, Any]:
        """What was left out or is not learnt, as arguments of the
        ranks' data set: those that say something.
        """
        said: dict[str, Any] = {}
        if self.broken is not None:
            said["broken"] = self.broken
        if self.equal is not None:
            said["equal"] = self.equal
        if self.ignored:
            said["ignored"] = dict(self.ignored)
        if self.last_alone:
            said["last_alone"] = self.last_alone
        return said


_LATEST: dict[str, Inputs] = {}  # by identity: checking and writing a run need the same
_NOTICES: dict[str, list[Message]] = {}  # by identity too, of all cells of a sweep
SHOWN = 8  # names in a line


def refuse(config: LlmConfig) -> None:
    """Refuse a method or a template that does not go with the other options."""
    engines.check(config)
    methods.check(config)
    axes.check(config)
    templates.check(config)


def check(config: LlmConfig) -> None:
    """See that rows, tokenizer, weights and model fit each other;
    a command that starts nothing fetches none.
    """
    data = config.dataset
    if starts_nothing(config) and isinstance(data, StoredTextConfig) and data.data_files is None:
        hub.check_source(data)
        tokenizer.check_files(config.tokenizer)
    else:
        prepare(config)


def prepare(config: LlmConfig) -> Inputs:
    """Read or generate the rows, train the tokenizer,
    and refuse (ValueError) what does not fit the model.
    """
    identity = _identity(config)
    if identity not in _LATEST:
        tokenizer.check_files(config.tokenizer)
        if isinstance(config.model, HfConfig):
            tokenizer.check_folder(config.model)
        loaded = row_sources.load(config)
        rows = loaded.rows
        if rows is None and isinstance(config.model, HfConfig):
            raise Refusal(
                "llm.folder-rows",
                f"dataset={config.dataset.name}: model=hf reads rows before the ranks start; "
                "set `dataset.rows=NUMBER`, or `dataset.data_files=FILE`",
                key="dataset",
                value=config.dataset.name,
            )
        last_alone = sum(bool(row.pop("last_alone", False)) for row in rows or ())
        for row in loaded.held_out.rows if loaded.held_out is not None else ():
            row.pop("last_alone", None)
        needed = config.rows_of_a_step
        # the number of packed rows is only known to the ranks
        if rows is not None and not config.packed and len(rows) < needed:
            raise _below_a_step(config, loaded, needed)
        token_ranks = train_tokenizer(config, loaded)
        vocabulary = model_vocabulary(config, len(token_ranks or []))
        quantised.check(config)
        models.check_weights(config.model, vocabulary)
        are_trained = [] if loaded.held_out is None else loaded.held_out.are_trained(rows or ())
        _LATEST.clear()
        _LATEST[identity] = Inputs(
            rows,
            token_ranks,
            vocabulary,
            loaded.broken,
            loaded.equal,
            loaded.ignored,
            last_alone,
            loaded.held_out,
            are_trained,
        )
        said = [*_of_held_out(config, loaded, sum(are_trained)), *_notices(loaded, last_alone)]
        if rows is not None and not config.packed:
            said += whole_steps.notices(config, len(rows))
        _NOTICES[identity] = said
    return _LATEST[identity]


def _identity(config: LlmConfig) -> str:
    """Of the inputs: a share that the command names must be held out, the default need not be."""
    return f"{config.identity()}-{config.dataset.is_split_by_default}"


def _below_a_step(config: LlmConfig, loaded: row_sources.LoadedRows, needed: int) -> Refusal:
    """The refusal of rows that fill no step, with more rows if the data have them,
    or else a smaller step.
    """
    rows = loaded.rows or []
    split = config.dataset.split
    each = config.world_size * config.gradient_accumulation_steps
    held_out = held_out_rows.size(loaded.wanted, split)
    left_out = loaded.wanted - held_out - len(rows)
    enough = needed + left_out
    while enough - held_out_rows.size(enough, split) < needed + left_out:
        enough += 1
    if loaded.available is None or loaded.available >= enough:
        remedy = f"dataset.rows={enough}"
    elif len(rows) >= each:
        remedy = f"batch_size={len(rows) // each}"
    elif len(rows) >= config.world_size:
        remedy = f"batch_size=1 gradient_accumulation_steps={len(rows) // config.world_size}"
    elif held_out and len(rows) + held_out >= needed:
        remedy = "dataset.split=0"
    else:
        remedy = None
    hint = f"use `{remedy}`" if remedy else f"give data of {config.world_size} rows or more"
    return Refusal(
        "llm.rows-below-a-step",
        f"dataset.rows={len(rows)}: is less than one step "
        f"(batch_size x gpus x gradient_accumulation_steps = {needed}); {hint}",
        key="dataset.rows",
        value=len(rows),
        needed=needed,
        remedy=remedy,
    )


def notices(config: LlmConfig) -> list[Message]:
    """What a person should know of the rows before the run starts;
    nothing of rows that were not read yet.
    """
    return _NOTICES.get(_identity(config), [])


def _notices(loaded: row_sources.LoadedRows, last_alone: int) -> list[Message]:
    said = list[Message]()
    if loaded.ignored:
        counted = [f"{name} ({number})" for name, number in loaded.ignored.items()]
        more = f" and {len(counted) - SHOWN} more" if len(counted) > SHOWN else ""
        said.append(
            Message(
                "llm.ignored",
                f"not read: {', '.join(counted[:SHOWN])}{more}; see ignored in the record",
                ignored=dict(loaded.ignored),
            )
        )
    if loaded.equal:
        said.append(
            Message(
                "llm.equal-pairs",
                f"left out: {loaded.equal} pairs whose answers are the same; see text_rows.equal in"
                " the record",
                pairs=loaded.equal,
            )
        )
    if last_alone:
        said.append(
            Message(
                "llm.last-answers-alone",
                f"only the last answer is learnt in {last_alone} rows: the chat template rewrites"
                " an answer once others follow; see text_rows.last_alone in the record",
                rows=last_alone,
            )
        )
    if loaded.by_place:
        said.append(
            Message(
                "llm.turns-by-place",
                f"{loaded.by_place} rows hold texts without roles, which are read as the user's and"
                " the assistant's in turn; words that name a speaker in them are learnt as text",
                rows=loaded.by_place,
            )
        )
    if 2 * loaded.repeating > loaded.wanted:  # of single rows it is what they say
        said.append(
            Message(
                "llm.answers-repeat",
                f"the answers of {loaded.repeating} rows begin with the whole text that they"
                " answer, which is then there twice. Give the answers alone, unless they are to"
                " repeat it",
                rows=loaded.repeating,
            )
        )
    tokens = loaded.tokens
    if tokens is not None and tokens.rows:
        shown = ", ".join([*tokens.within][:SHOWN])
        said.append(
            Message(
                "llm.template-twice",
                f"{tokens.rows} rows have tokens of the chat template in their own text ({shown}),"
                " which it writes again. Give the text alone, or segments that are learnt as"
                " they are",
                rows=tokens.rows,
                tokens=dict(tokens.within),
            )
        )
    if tokens is not None and tokens.unended:
        said.append(
            Message(
                "llm.answers-unended",
                f"{tokens.unended} rows have an answer that no special token ends, so that the"
                " model does not learn to stop. Give a chat template that writes one behind each"
                " answer",
                rows=tokens.unended,
            )
        )
    return said


def _of_held_out(
    config: LlmConfig, loaded: row_sources.LoadedRows, also_trained: int
) -> list[Message]:
    """What a person should know of the rows that are held out, or are not."""
    data = config.dataset
    if loaded.too_few:
        return [
            Message(
                "llm.too-few-to-hold-out",
                f"no row is held out: of {loaded.wanted} rows, too few would be left to train or to"
                " measure on",
                key="dataset.split",
                rows=loaded.wanted,
            )
        ]
    if loaded.held_out is None:
        return []
    count = len(loaded.held_out.rows)
    trained = len(loaded.rows or ())
    splits = loaded.held_out.splits
    ways = (
        "`dataset.split=0` trains on all"
        if data.split is not None
        else "the rows of dataset.test_files"
    )
    said = [
        Message(
            "llm.held-out",
            f"held out: {count} rows beside {trained} that are trained on; their loss is measured"
            f" after each epoch ({ways})",
            key="dataset.split" if data.split is not None else "dataset.test_files",
            rows=count,
            trained=trained,
        )
    ]
    if splits is not None:
        remedy = columns.override({"split": None})
        said = [
            Message(
                "llm.held-out-by-column",
                f"held out: {count} rows that the column {splits.column} calls {splits.part},"
                f" beside {trained} that are trained on; `{remedy}` trains on rows of all splits",
                key="dataset.columns",
                rows=count,
                trained=trained,
                column=splits.column,
                part=splits.part,
                remedy=remedy,
            )
        ]
    if also_trained:
        said.append(
            Message(
                "llm.also-trained",
                f"{also_trained} of {count} held-out rows are equal to rows that are trained on:"
                " the held-out loss is lower than on new rows",
                rows=also_trained,
                held_out=count,
            )
        )
    return said


def train_tokenizer(config: LlmConfig, loaded: row_sources.LoadedRows) -> list[bytes] | None:
    """The embedded tokenizer's tokens, by rank; None for another tokenizer.

    It sees held-out rows too, which tells nothing to the model: its weights are random, and a token
    is a token whatever text it was merged from. So a split leaves the model's vocabulary as it is
    without one.
    """
    options = config.tokenizer
    rows = loaded.rows
    if not isinstance(options, EmbeddedTokenizerConfig):
        return None
    if rows is None:
        sample = row_sources.sample(config, TOKENIZER_ROWS)
    else:
        drawn = (
            loaded.held_out.rows
            if loaded.held_out is not None and config.dataset.split is not None
            else []
        )
        sample = [*rows, *drawn][:TOKENIZER_ROWS]
    headers = []
    for role in tokenizer.ROLES:
        headers += [role] * len(sample)
    return tokenizer.train([*row_sources.texts(config, sample), *headers], options.vocab_size)


def model_vocabulary(config: LlmConfig, ranks: int) -> int:
    """The model's vocabulary: the tokenizer's, unless the model fixes its own.
    Refuses one that is too small.
    """
    needed = tokenizer.vocabulary(config.tokenizer, ranks)
    fixed = config.model.vocab_size
    if fixed is not None and fixed < needed:
        raise Refusal(
            "llm.small-vocabulary",
            f"model.vocab_size={fixed}: tokenizer={config.tokenizer.name} has {needed} tokens; "
            f"use `model.vocab_size={needed}` or more, or another tokenizer",
            key="model.vocab_size",
            value=fixed,
            tokens=needed,
        )
    return fixed or needed


def data_parts(config: LlmConfig) -> dict[str, list[Blob]]:
    """What identifies the data, before any sampling by rows or seed: rows,
    the tokenizer's files and the weights.

    A part that the run makes itself has no blobs, nor has a data
    set of the hub that is not in the library's cache.
    """
    weights: list[Blob] = []
    if config.model.folder is not None:
        folder = Path(config.model.folder).expanduser()
        weights = [(path.name, path) for path in sorted(folder.glob("*.safetensors"))]
    files: dict[str, str | None] = {}
    if isinstance(config.tokenizer, Llama3TokenizerConfig):
        files = {"tokenizer.model": config.tokenizer.path}
    elif isinstance(config.tokenizer, Qwen25TokenizerConfig):
        files = {"vocab.json": config.tokenizer.path, "merges.txt": config.tokenizer.merges_file}
    elif isinstance(config.model, HfConfig):
        folder = Path(str(config.model.path)).expanduser()
        files = {name: str(folder / name) for name in tokenizer.FILES if (folder / name).is_file()}
    named: list[Blob] = [(name, Path(str(path)).expanduser()) for name, path in files.items()]
    if isinstance(config.dataset, ChatConfig) or isinstance(config.model, HfConfig):
        named.append(text_blob("chat_template", chat.template(config).text))
    return {"dataset": _identified_rows(config), "tokenizer": named, "weights": weights}


def _identified_rows(config: LlmConfig) -> list[Blob]:
    data = config.dataset
    if isinstance(data, SyntheticConfig):
        rows = {
            name: templates.examples(name, IDENTIFYING_ROWS, seed=0)
            for name in sorted(templates.TEMPLATES)
        }
        return [text_blob("synthetic", json.dumps(rows))]
    assert isinstance(data, StoredTextConfig)
    if data.data_files is not None:
        return list(files.identified(data))
    revision = hub.revision(str(data.source))
    return [] if revision is None else [text_blob("hub", f"{data.source}@{revision}")]
