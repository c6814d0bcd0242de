"""How a script on one GPU is started, and what is said where it fails;
figures that are not known.
"""

import runpy
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from multicard.config.base import plain
from multicard.config.script import ScriptConfig, ScriptLaunch
from multicard.messages import Refusal
from multicard.ranks.process import Rank
from multicard.script import launch
from multicard.script.run import exited
from tests.helpers.messages import find, says
from tests.script.test_script_runs import GROUP, TRAIN, measured
from tests.script.test_words import typed

pytestmark = pytest.mark.usefixtures("processes")
Script = Callable[[str], str]
ALONE = "assert 'RANK' not in os.environ and 'TORCHELASTIC_RUN_ID' not in os.environ\n"
JOINS = "dist.init_process_group('gloo', init_method='env://')\n"


@pytest.mark.parametrize(
    ("body", "fails_by", "starts_by"),
    [(ALONE + TRAIN, "torchrun", "python"), (JOINS + TRAIN, "python", "torchrun")],
)
def test_a_script_that_fails_at_its_start_is_told_of_the_other_way(
    script: Script, body: str, fails_by: str, starts_by: str
):
    name = script(body)
    record = measured(name, "steps=8", "args.lr=1", f"launch={fails_by}").record
    assert record.status == "failed" and record.cause
    said = find(record.cause.message, "script.failed-at-start", key="launch", value=fails_by)
    command = shlex.split(said.facts["command"])
    assert command[0] in ("multicard", "python") and Path(command[1]).name in (
        "script",
        "measure_script.py",
    )
    assert command[-1] == f"launch={starts_by}"
    assert measured(*(word.removeprefix("script=") for word in command[2:])).record.status == "ok"


@pytest.mark.parametrize(
    "line",
    [
        "open('RANK/none.csv')",
        "import pickle; pickle.loads(b'no pickle')",
        "torch.device('gpu')",
        "raise ValueError('rank of the matrix')",
        "raise RuntimeError('CUDA error: device-side assert triggered')",
        "sys.exit('no data')",
        "sys.exit(2)",
    ],
)
@pytest.mark.parametrize("by", ScriptLaunch)
def test_another_error_is_told_of_no_other_way(line: str, by: ScriptLaunch):
    assert told_of(line, by) is None


@pytest.mark.parametrize(
    ("line", "by"),
    [
        ("os.environ['LOCAL_RANK']", ScriptLaunch.python),
        ("assert 'WORLD_SIZE' not in os.environ", ScriptLaunch.torchrun),
        ("raise RuntimeError('No CUDA GPUs are available')", ScriptLaunch.torchrun),
        ("raise RuntimeError('CUDA error: invalid device ordinal')", ScriptLaunch.torchrun),
        ("raise ValueError('Default process group has not been initialized')", ScriptLaunch.python),
        ("raise RuntimeError('NCCL error in: unhandled system error')", ScriptLaunch.torchrun),
        ("sys.exit('start me by torchrun: RANK is not set')", ScriptLaunch.python),
    ],
)
def test_an_error_of_the_start_is_told_of_the_other_way(
    monkeypatch: pytest.MonkeyPatch, line: str, by: ScriptLaunch
):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "1")
    said = told_of(line, by)
    assert said is not None
    own = shlex.split(said.facts["command"])[2:]
    other = ScriptLaunch.python if by is ScriptLaunch.torchrun else ScriptLaunch.torchrun
    again = typed(*own)
    assert again.launch is other and (again.device, again.name, again.warmup_steps) == (
        "cpu",
        "mine",
        1,
    )
    assert plain(again) | {"launch": str(by)} == plain(config_by(by))


def config_by(by: ScriptLaunch) -> ScriptConfig:
    return typed("device=cpu", "name=mine", "warmup_steps=1", "args.lr=1", f"launch={by}")


def told_of(line: str, by: ScriptLaunch) -> Refusal | None:
    """What is said where this line of a script fails."""
    path = Path("fails.py")
    path.write_text(f"import os, sys, torch\n{line}\n")
    try:
        runpy.run_path(str(path.absolute()))
    except SystemExit as end:
        error: BaseException = exited(config_by(by), end.code)
        error.__cause__ = end
    except Exception as raised:
        error = raised
    else:
        pytest.fail("it did not fail")
    return launch.failed_at_start(
        config_by(by), Rank(0, 0, 1, torch.device("cpu"), "gloo", 1), error
    )


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_more_ranks_than_one_are_started_by_torchrun(script: Script):
    assert (
        measured(script(GROUP + TRAIN), "gpus=2", "steps=8", "launch=python").record.status == "ok"
    )


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
