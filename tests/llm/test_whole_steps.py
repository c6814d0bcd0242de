"""Rows that fill no whole step: said before the start with their number,
and with an override that trains on them.
"""

from pathlib import Path

import pytest

from multicard.llm import preflight, whole_steps
from multicard.llm.whole_steps import StepSize
from tests.conftest import typed_llm
from tests.helpers.messages import remedies
from tests.llm.test_chat import written
from tests.llm.test_row_forms import CHAT, A, Q


def noticed(folder: Path, rows: int, *words: str) -> list[whole_steps.Message]:
    config = typed_llm(written(folder, *[{"messages": [Q, A]}] * rows), *CHAT, *words)
    preflight.prepare(config)
    codes = ("llm.rows-of-no-step", "llm.rows-repeated")
    return [notice for notice in preflight.notices(config) if notice.code in codes]


TOO_LARGE: list[tuple[int, tuple[str, ...], int]] = [
    (12, ("batch_size=4", "gradient_accumulation_steps=2"), 4),
    (10, ("batch_size=4",), 2),
    (9, ("batch_size=4", "gradient_accumulation_steps=2"), 1),
    (15, ("batch_size=1", "gradient_accumulation_steps=4"), 3),
    (20, ("batch_size=4", "gpus=2"), 4),
    (20, ("global_batch_size=8", "batch_size_asked=global", "gpus=2"), 4),
    (20, ("global_batch_size=8", "batch_size=2", "gpus=2"), 4),
    (18, ("global_batch_size=12", "batch_size_asked=global", "gradient_accumulation_steps=2"), 6),
]


@pytest.mark.parametrize(("rows", "words", "left_out"), TOO_LARGE)
def test_rows_of_no_whole_step_are_said_and_the_remedy_trains_on_them(
    rows: int, words: tuple[str, ...], left_out: int, tmp_path: Path
):
    (notice,) = noticed(tmp_path, rows, *words)
    assert notice.code == "llm.rows-of-no-step"
    assert (notice.facts["rows"], notice.facts["left_out"]) == (rows, left_out)
    (remedy,) = remedies(notice)
    assert not noticed(tmp_path, rows, *words, *remedy.split())


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (12, ("batch_size=4",)),
        (12, ("batch_size=8", "packed=true", "max_seq_len=64")),
        (201, ("batch_size=2",)),
    ],
)
def test_nothing_is_said_where_all_or_nearly_all_rows_are_trained_on(
    rows: int, words: tuple[str, ...], tmp_path: Path
):
    assert not noticed(tmp_path, rows, *words)


def test_an_epoch_that_max_steps_ends_before_leaves_out_what_it_was_asked_to(tmp_path: Path):
    words = ("batch_size=4", "dataset.rows=10")
    assert noticed(tmp_path, 10, *words) and not noticed(tmp_path, 10, *words, "max_steps=1")


def test_no_remedy_is_offered_where_no_near_step_divides(tmp_path: Path):
    (notice,) = noticed(tmp_path, 13, "batch_size=5")
    assert notice.facts["left_out"] == 3 and notice.facts["remedy"] is None and not remedies(notice)


def test_rows_that_two_ranks_train_on_are_said(tmp_path: Path):
    (notice,) = noticed(tmp_path, 11, "gpus=2", "batch_size=2")
    assert notice.code == "llm.rows-repeated" and notice.facts["repeated"] == 1


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_counts_are_those_of_the_sampler_and_its_batches(ranks: int):
    """Against torch's own sampler and loader, of which only whole accumulations are trained."""
    torch_data = pytest.importorskip("torch.utils.data")
    for rows in range(12, 30):
        for step in (StepSize(1, 1), StepSize(2, 1), StepSize(2, 2), StepSize(3, 2)):
            trained = list[int]()
            for rank in range(ranks):
                sampler = torch_data.DistributedSampler(
                    range(rows), ranks, rank, shuffle=True, seed=0
                )
                batches = list(torch_data.BatchSampler(sampler, step.batch, drop_last=True))
                whole = batches[: len(batches) // step.batches * step.batches]
                trained += [row for batch in whole for row in batch]
            found = whole_steps.count_epoch_rows(rows, ranks, step)
            assert rows - len({*trained}) == found.left_out, (rows, ranks, step)
            assert len(trained) - len({*trained}) == found.repeated, (rows, ranks, step)


FEW: list[tuple[tuple[str, ...], int, int]] = [
    (("batch_size=4",), 3, 0),
    (("batch_size=4", "epochs=2"), 6, 1),
    (("batch_size=4", "max_steps=1"), 1, 0),
    (("batch_size=2", "skip_steps=2"), 6, 4),
]


@pytest.mark.parametrize(("words", "steps", "measured"), FEW)
def test_too_few_steps_are_said_before_the_run_with_a_length_that_is_enough(
    words: tuple[str, ...], steps: int, measured: int, tmp_path: Path
):
    (notice,) = few(tmp_path, *words)
    assert (notice.facts["steps"], notice.facts["measured"]) == (steps, measured)
    (remedy,) = remedies(notice)
    longer = [word for word in words if not word.startswith("epochs=")]
    assert not few(tmp_path, *longer, remedy)
    shorter = f"epochs={notice.facts['epochs'] - 1}"
    assert few(tmp_path, *longer, shorter)
    assert not few(tmp_path, *words, "scale=smoke")


def few(folder: Path, *words: str) -> list[whole_steps.Message]:
    config = typed_llm(written(folder, *[{"messages": [Q, A]}] * 12), *CHAT, *words)
    preflight.prepare(config)
    return [notice for notice in preflight.notices(config) if notice.code == "llm.few-steps"]
