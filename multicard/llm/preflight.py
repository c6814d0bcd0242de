"""Prepare the inputs of a tuning run, and refuse options before any model is built.

The inputs are the rows, the tokenizer and the fingerprints of the data. Imports no torch.
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
from multicard.llm import (
    axes,
    engines,
    few_steps,
    methods,
    models,
    quantised,
    row_notices,
    whole_steps,
)
from multicard.llm.data import (
    chat,
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

TOKENIZER_ROWS = 2000  # The embedded tokenizer is trained on at most this number of rows.
# Rows of each template that are fingerprinted, so that another version of the generator shows.
IDENTIFYING_ROWS = 20


@dataclass(frozen=True)
class Inputs:
    """The inputs of a run in addition to its configuration.

    Attributes:
        rows: The training rows, or None if the ranks read a whole data set of the hub.
        token_ranks: Tokens of the embedded tokenizer, in the order of their ranks. None for
            another tokenizer.
        vocabulary: Number of entries in the model's vocabulary.
        broken, equal, ignored: What was left out of the rows (see `LoadedRows`).
        last_alone: Number of rows with several answers of which only the last one is learnt.
        held_out: Rows that are not trained on.
        are_trained: For each held-out row, True if an equal row is trained on.
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
    def dataset_arguments(self) -> dict[str, Any]:
        """Return what was left out or is not learnt, as arguments of the ranks' data set.

        Only counts that are known and not empty are among them.
        """
        arguments: dict[str, Any] = {}
        if self.broken is not None:
            arguments["broken"] = self.broken
        if self.equal is not None:
            arguments["equal"] = self.equal
        if self.ignored:
            arguments["ignored"] = dict(self.ignored)
        if self.last_alone:
            arguments["last_alone"] = self.last_alone
        return arguments


# Inputs by the identity of their run. The checks of a run and its start need the same ones.
_LATEST_INPUTS: dict[str, Inputs] = {}
# Notices by the same identity, for all cells of a sweep.
_RUN_NOTICES: dict[str, list[Message]] = {}


def refuse(config: LlmConfig) -> None:
    """Refuse an engine, a method or a template that does not fit the other options."""
    methods.check_options(config)
    engines.check_engine(config)
    axes.check_axes(config)
    templates.check_template(config)


def check_rows(config: LlmConfig) -> None:
    """Check that rows, tokenizer, weights and model fit each other.

    A command that starts no run does not download rows for this.
    """
    data = config.dataset
    if starts_nothing(config) and isinstance(data, StoredTextConfig) and data.data_files is None:
        hub.check_source(data)
        tokenizer.check_files(config.tokenizer)
    else:
        prepare(config)


def prepare(config: LlmConfig) -> Inputs:
    """Read or generate the rows and train the tokenizer.

    Raises:
        ValueError: The rows or the tokenizer do not fit the model.
    """
    identity = _identity(config)
    if identity not in _LATEST_INPUTS:
        tokenizer.check_files(config.tokenizer)
        if isinstance(config.model, HfConfig):
            tokenizer.check_folder(config.model)
        loaded = row_sources.load_rows(config)
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
        # With packing, only the ranks know the number of rows.
        if rows is not None and not config.packed and len(rows) < needed:
            raise _rows_below_a_step(config, loaded, needed)
        token_ranks = train_tokenizer(config, loaded)
        vocabulary = model_vocabulary(config, len(token_ranks or []))
        quantised.check_unquantised(config)
        models.check_weights(config.model, vocabulary)
        are_trained = list[bool]()
        trained_prompts = 0
        if loaded.held_out is not None:
            are_trained = loaded.held_out.are_trained(rows or ())
            trained_prompts = loaded.held_out.trained_prompts(rows or (), are_trained)
        _LATEST_INPUTS.clear()
        _LATEST_INPUTS[identity] = Inputs(
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
        run_notices = [
            *row_notices.of_held_out(config, loaded, sum(are_trained), trained_prompts),
            *row_notices.of_rows(loaded, last_alone),
        ]
        if rows is not None and not config.packed:
            run_notices += whole_steps.notices(config, len(rows))
            run_notices += few_steps.notices(config, len(rows))
        _RUN_NOTICES[identity] = run_notices
    return _LATEST_INPUTS[identity]


def _identity(config: LlmConfig) -> str:
    """Return what the inputs are stored under.

    It says whether the command itself sets the split: only then must rows be held out.
    """
    return f"{config.identity()}-{config.dataset.is_split_by_default}"


def _rows_below_a_step(config: LlmConfig, loaded: row_sources.LoadedRows, needed: int) -> Refusal:
    """Return the refusal of rows that do not fill a step.

    Its remedy is more rows if the data set has them, and otherwise a smaller step.
    """
    rows = loaded.rows or []
    split = config.dataset.split
    micro_batches = config.world_size * config.gradient_accumulation_steps
    held_out = held_out_rows.size(loaded.wanted, split)
    left_out = loaded.wanted - held_out - len(rows)
    sufficient_rows = needed + left_out
    while sufficient_rows - held_out_rows.size(sufficient_rows, split) < needed + left_out:
        sufficient_rows += 1
    if loaded.available is None or loaded.available >= sufficient_rows:
        remedy = f"dataset.rows={sufficient_rows}"
    elif len(rows) >= micro_batches:
        remedy = f"batch_size={len(rows) // micro_batches}"
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
    """Return what a user should know about the rows before the run starts.

    Rows that were not read yet have no notices.
    """
    return _RUN_NOTICES.get(_identity(config), [])


def train_tokenizer(config: LlmConfig, loaded: row_sources.LoadedRows) -> list[bytes] | None:
    """Train the embedded tokenizer and return its tokens in the order of their ranks.

    It also sees the held-out rows, so that a split does not change the model's vocabulary. The
    model learns nothing about them: its weights are random, and a token does not reveal which
    text it was merged from.

    Returns:
        The tokens, or None for another tokenizer.
    """
    options = config.tokenizer
    rows = loaded.rows
    if not isinstance(options, EmbeddedTokenizerConfig):
        return None
    if rows is None:
        sample = row_sources.sample(config, TOKENIZER_ROWS)
    else:
        held_out_sample = (
            loaded.held_out.rows
            if loaded.held_out is not None and config.dataset.split is not None
            else []
        )
        sample = [*rows, *held_out_sample][:TOKENIZER_ROWS]
    headers = []
    for role in tokenizer.ROLES:
        headers += [role] * len(sample)
    return tokenizer.train([*row_sources.texts(config, sample), *headers], options.vocab_size)


def model_vocabulary(config: LlmConfig, ranks: int) -> int:
    """Return the size of the model's vocabulary.

    It is the tokenizer's, unless the model sets its own. A size below the tokenizer's is refused.
    """
    needed = tokenizer.vocabulary(config.tokenizer, ranks)
    configured_size = config.model.vocab_size
    if configured_size is not None and configured_size < needed:
        raise Refusal(
            "llm.small-vocabulary",
            f"model.vocab_size={configured_size}: tokenizer={config.tokenizer.name} has {needed}"
            f" tokens; use `model.vocab_size={needed}` or more, or another tokenizer",
            key="model.vocab_size",
            value=configured_size,
            tokens=needed,
        )
    return configured_size or needed


def data_parts(config: LlmConfig) -> dict[str, list[Blob]]:
    """Return what identifies the data: rows, tokenizer files and weights.

    Rows are identified before they are sampled by number or seed. A part that the run generates
    itself has no blobs. The same holds for a data set of the hub that is not in the library's
    cache.
    """
    weights: list[Blob] = []
    if config.model.folder is not None:
        folder = Path(config.model.folder).expanduser()
        weights = [(path.name, path) for path in sorted(folder.glob("*.safetensors"))]
    tokenizer_files: dict[str, str | None] = {}
    if isinstance(config.tokenizer, Llama3TokenizerConfig):
        tokenizer_files = {"tokenizer.model": config.tokenizer.path}
    elif isinstance(config.tokenizer, Qwen25TokenizerConfig):
        tokenizer_files = {
            "vocab.json": config.tokenizer.path,
            "merges.txt": config.tokenizer.merges_file,
        }
    elif isinstance(config.model, HfConfig):
        folder = Path(str(config.model.path)).expanduser()
        tokenizer_files = {
            name: str(folder / name) for name in tokenizer.FILES if (folder / name).is_file()
        }
    tokenizer_blobs: list[Blob] = [
        (name, Path(str(path)).expanduser()) for name, path in tokenizer_files.items()
    ]
    if isinstance(config.dataset, ChatConfig) or isinstance(config.model, HfConfig):
        tokenizer_blobs.append(text_blob("chat_template", chat.template(config).text))
    return {"dataset": _dataset_blobs(config), "tokenizer": tokenizer_blobs, "weights": weights}


def _dataset_blobs(config: LlmConfig) -> list[Blob]:
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
