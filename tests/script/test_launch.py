"""How a script on one GPU is started, and what is said where it fails; figures that are not known."""

import shlex
from collections.abc import Callable

import pytest

from tests.helpers.messages import find, says
from tests.script.test_script_runs import GROUP, TRAIN, measured

pytestmark = pytest.mark.usefixtures("processes")
Script = Callable[[str], str]
ALONE = "assert 'RANK' not in os.environ and 'TORCHELASTIC_RUN_ID' not in os.environ\n"
JOINS = "dist.init_process_group('gloo', init_method='env://')\n"


@pytest.mark.parametrize(
    ("body", "fails_by", "starts_by"), [(ALONE + TRAIN, "torchrun", "python"), (JOINS + TRAIN, "python", "torchrun")]
)
def test_a_script_that_fails_at_its_start_is_told_of_the_other_way(
    script: Script, body: str, fails_by: str, starts_by: str
):
    name = script(body)
    record = measured(name, "steps=8", "args.lr=1", f"launch={fails_by}").record
    assert record.status == "failed" and record.cause
    said = find(record.cause.message, "script.failed-at-start", key="launch", value=fails_by)
    command = shlex.split(said.facts["command"])
    assert command[:2] == ["multicard", "script"] and command[-1] == f"launch={starts_by}"
    assert measured(*(word.removeprefix("script=") for word in command[2:])).record.status == "ok"


def test_more_ranks_than_one_are_started_by_torchrun(script: Script):
    assert measured(script(GROUP + TRAIN), "gpus=2", "steps=8", "launch=python").record.status == "ok"


def test_that_no_step_counts_is_said(script: Script):
    record = measured(script(TRAIN), "steps=4").record
    assert record.status == "ok" and record.samples_per_s is None
    assert says("\n".join(record.seen), "script.no-step-counts", steps=4, left_out=0)


def test_one_rank_may_draw_the_batches_of_all(script: Script):
    body = (
        GROUP
        + """
for epoch in range(2):
    for batch in DataLoader(data, 8) if os.environ["RANK"] == "0" else [data[:4]] * 12:
        loss_of([part[:4] for part in batch]).backward(); optimizer.step()
"""
    )
    record = measured(script(body), "gpus=2").record
    assert record.status == "ok" and record.samples_per_s
    assert "script.no-loader" not in record.seen_codes
