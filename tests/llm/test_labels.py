"""Which tokens are learnt, whatever the engine: no token of another row, no history of a pair,
and at what rate.
"""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchtune.data import CROSS_ENTROPY_IGNORE_IDX as IGNORED

from multicard.llm import labelled_rows
from multicard.llm.batches import COUNTS, count, stack_sequences, with_counts
from multicard.llm.data import pairs
from multicard.llm.data.pairs import CHOICES
from tests.llm.test_chat import ROWS, written
from tests.llm.test_engines import tuned_here
from tests.llm.test_llm_data import read

NEEDS_TRL = pytest.mark.skipif(find_spec("trl") is None, reason="pip install -e .[trl]")
LEARN_ALL = {"chat": ["dataset.loss=all"], "alpaca_cleaned": []}


def rows_of(name: str) -> list[Any]:
    if name == "chat":
        return ROWS * 3
    return [
        {"instruction": f"Say {word}.", "output": word} for word in ("one", "two", "three", "four")
    ]


@pytest.mark.parametrize("name", LEARN_ALL)
def test_no_row_of_a_pack_predicts_the_next_rows_first_token(name: str, tmp_path: Path):
    """Every token is learnt but each row's first one, which nothing in its row predicts."""
    words = (f"dataset={name}", written(tmp_path, *rows_of(name)), "batch_size=1", *LEARN_ALL[name])
    rows = list(read(tmp_path / "rows", *words)[1])
    length = 3 * max(len(row["tokens"]) for row in rows)
    packs = list(read(tmp_path / "packs", *words, "packed=true", f"max_seq_len={length}")[1])
    assert len(packs) < len(rows)
    for pack in packs:
        starts = pack["input_pos"] == 0
        assert starts.any() and (pack["labels"][starts] == IGNORED).all()
    predicted = sum(len(row["tokens"]) - 1 for row in rows)
    column = COUNTS.index("loss_bearing")
    packed = [count(with_counts(stack_sequences)([pack]), -1, "cpu")[column] for pack in packs]
    alone = [int((torch.tensor(row["labels"][1:]) != IGNORED).sum()) for row in rows]
    if name == "chat":
        assert sum(alone) == predicted
    assert sum(packed) == sum(alone)


def test_labels_are_counted_as_they_are_predicted(tmp_path: Path):
    """torchtune's recipes weigh batches by the labels that they count
    before the first of each row is shifted away.
    """
    words = ("dataset=chat", written(tmp_path, *ROWS), "dataset.loss=all")
    for row in read(tmp_path / "rows", *words)[1]:
        assert row["labels"][0] == IGNORED and list(row["labels"][1:]) == list(row["tokens"][1:])


HISTORY = [
    {"role": "user", "content": "First?"},
    {"role": "assistant", "content": "Shared"},
    {"role": "user", "content": "Second?"},
]
PAIR = {
    "chosen": [*HISTORY, {"role": "assistant", "content": "Better"}],
    "rejected": [*HISTORY, {"role": "assistant", "content": "Worse"}],
}


def test_of_a_pairs_turns_only_those_after_the_shared_history_are_learnt(tmp_path: Path):
    words = ("dataset=preference", "method=dpo", written(tmp_path, PAIR, PAIR))
    tokenizer, data = read(tmp_path / "run", *words)
    for name, answer in zip(CHOICES, ("Better", "Worse"), strict=True):
        labels = [label for label in data[0][f"{name}_labels"] if label != IGNORED]
        said = tokenizer.decode(labels)
        assert answer in said and "Shared" not in said
        assert "Shared" in tokenizer.decode(list(data[0][f"{name}_input_ids"]))


def test_of_a_pair_of_pieces_the_shared_ones_are_not_learnt(tmp_path: Path):
    """As `model=hf` has pairs, in the chat template's text; what follows the answers is not learnt
    either. Held-out pairs have their number beside them.
    """
    from multicard.llm.data.tokenizer import FolderTokenizer
    from tests.llm.test_folders import byte_tokenizer

    byte_tokenizer(tmp_path)
    pieces = [("<u>First?", False), ("Shared</s>", True), ("<u>Second?", False)]
    pair = {
        name: [
            {"content": text, "learnt": learnt}
            for text, learnt in [*pieces, (said + "</s>", True), ("!", False)]
        ]
        for name, said in zip(CHOICES, ("Better", "Worse"), strict=True)
    }
    every = [pair, pair | {"rejected": pair["chosen"]}]
    rows = [
        dict(zip(CHOICES, pairs.answers_alone(row["chosen"], row["rejected"]), strict=True))
        for row in every
    ]
    lines = [
        json.dumps({"row": place, "is_trained": False} | row) for place, row in enumerate(rows)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    tokenizer = FolderTokenizer(str(tmp_path))
    data = {
        "data_files": str(tmp_path / "rows.jsonl"),
        "split": "train",
        "cache_dir": str(tmp_path / "cache"),
    }
    different, equal = labelled_rows.ChatPairs(tokenizer, source="json", **data)
    decode = tokenizer._tokenizer.decode
    learnt = {
        name: decode(
            [label for label in different[f"{name}_labels"] if label != IGNORED],
            skip_special_tokens=False,
        )
        for name in CHOICES
    }
    assert learnt == {"chosen": "Better</s>", "rejected": "Worse</s>"}
    assert all(
        sum(label != IGNORED for label in equal[f"{name}_labels"]) == len("Better") + 1
        for name in CHOICES
    )


def test_a_history_that_differs_is_an_answer(tmp_path: Path):
    """All turns of the assistant count from the first difference on."""
    changed = [HISTORY[0], {"role": "assistant", "content": "Other"}, *PAIR["rejected"][2:]]
    words = ("dataset=preference", "method=dpo", written(tmp_path, PAIR | {"rejected": changed}))
    tokenizer, data = read(tmp_path / "run", *words, "batch_size=1")
    learnt = {
        name: tokenizer.decode([label for label in data[0][f"{name}_labels"] if label != IGNORED])
        for name in CHOICES
    }
    assert "Shared" in learnt["chosen"] and "Better" in learnt["chosen"]
    assert (
        "Other" in learnt["rejected"]
        and "Worse" in learnt["rejected"]
        and "Second" not in learnt["rejected"]
    )


@pytest.mark.usefixtures("processes")  # imports TRL, which takes seconds
@pytest.mark.parametrize("engine", ["torchtune", pytest.param("trl", marks=NEEDS_TRL)])
def test_the_learning_rate_of_a_step_is_the_one_it_was_taken_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
):
    """The warm-up begins at 0, so that the first step changes no weight."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    words = (
        "lr=1e-2",
        "warmup_steps=2",
        "max_steps=2",
        "epochs=2",
        "gradient_accumulation_steps=2",
    )
    _, columns = tuned_here(tmp_path / "run", f"engine={engine}", *words)
    np.testing.assert_allclose(columns["lr"], [0.0, 5e-3, 1e-2, 5e-3], rtol=1e-6, atol=1e-12)
