"""Races on this machine: blocks as they are read, what a race keeps, cells that end, what is
refused, and a small race to its end.
"""

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from hydra_plugins.multicard_launchers._batches import SweepBatches
from multicard.decide.race import command, live, processes, race_cells, readings
from multicard.decide.race.final_runs import FinalRuns
from multicard.decide.race.live import LiveRace
from multicard.decide.race.outcome import IN, OUT
from multicard.decide.race.posterior import Prior
from multicard.decide.race.processes import CellEndedError, CellProcess
from multicard.decide.race.readings import LEAST_STEPS, BlockReader
from multicard.estimate.estimates import Estimate
from multicard.machine import environment, shares
from multicard.messages import Message
from multicard.ranks.gates import blocks_file
from multicard.records import limits, run_folder
from multicard.records.figures import FIGURES
from multicard.records.journal import JournalError
from multicard.records.schema_parts import PredictedInterval, Prediction
from multicard.records.trained_weights import ApartBy
from multicard.sweep.cells import Cell
from multicard.sweep.executor import NO_RECORD, Executor, Running
from multicard.sweep.streak import SameFailureError
from multicard.vision.workload import WORKLOAD
from tests.conftest import SMALL, Called, composed, typed
from tests.helpers import records
from tests.helpers.cells import sweep
from tests.helpers.messages import find, says
from tests.helpers.race_fakes import KILLED_BY, SHARE, Process, Rules, faked, measured, write_block

Made = Callable[..., LiveRace]
CPU = ("device=cpu", "race.figure=images_per_s")

# ---- blocks and cells


def test_a_block_is_read_once_all_ranks_have_written_it(tmp_path: Path):
    write_line = partial(write_block, tmp_path, ranks=2, step_s=[0.5, 0.7], samples=[8.0, 8.0])
    reader = BlockReader(tmp_path)
    assert reader.next() is None
    write_line(rank=0)
    assert reader.next() is None
    write_line(rank=1, end="", step_s=[0.7, 0.9], samples=[8.0, 4.0])
    assert reader.next() is None  # its line is not whole
    with blocks_file(tmp_path, 1).open("a") as file:
        file.write("\n")
    block = reader.next()
    assert block is not None and reader.next() is None
    assert block.step_s == pytest.approx([0.6, 0.8]) and block.samples.tolist() == [16.0, 12.0]
    assert block.reading()[0] == pytest.approx(math.log(28 / 1.4))
    assert block.peaks_bytes == [10, 10] and not block.diverged
    for rank in range(2):
        write_line(rank=rank, loss=None)
    after = reader.next()
    assert after is not None and after.diverged


@pytest.mark.parametrize(
    ("grouped", "values", "apart_by"),
    [
        ([True, True], "ab", ApartBy.values),
        ([True, False], "aa", ApartBy.group),
        ([True, True], "aa", None),
        ([True, True], "a", None),
        ([False], "a", None),
    ],
)
def test_a_block_says_whether_ranks_train_apart(
    tmp_path: Path, grouped: list[bool], values: str, apart_by: ApartBy | None
):
    for rank, joined in enumerate(grouped):
        own = [{"digests": [each]} for each in values[rank : rank + 1]]
        write_block(
            tmp_path,
            rank,
            ranks=len(grouped),
            held={"grouped": joined, "weights": own[0] if own else None},
        )
    block = BlockReader(tmp_path).next()
    assert block is not None and block.apart_by is apart_by


def test_the_error_of_a_block_is_that_of_its_rate():
    random = np.random.default_rng(0)
    errors, rates = [], []
    for _ in range(200):
        tokens = random.integers(50, 150, 100).astype(float)
        block = measured(tokens * 1e-3 * (1 + 0.05 * random.normal(size=100)), tokens)
        rate, error = block.reading()
        errors.append(error)
        rates.append(rate)
    # 5 % a step over 100 steps; the tokens themselves, which differ by a third,
    # are no error of the rate
    assert np.median(errors) == pytest.approx(0.005, rel=0.3) and np.std(rates) == pytest.approx(
        0.005, rel=0.3
    )


@pytest.mark.parametrize(
    ("step_s", "skips", "steps_per_epoch", "steps"),
    [
        (0.1, 3, 1000, 50 + 3),
        (0.1, 3, 11, 50 + 3 + 5),
        (0.1, 1, 1, 50 + 1),
        (60.0, 1, 100, LEAST_STEPS + 1),
    ],
)
def test_a_block_is_as_long_as_asked_for(
    step_s: float, skips: int, steps_per_epoch: int, steps: int
):
    # the first of each epoch is skipped
    assert readings.steps_for(5.0, step_s, skips, steps_per_epoch) == steps


def test_the_rate_of_a_full_run_leaves_the_first_step_of_each_epoch_out(tmp_path: Path):
    step_s = [9.0, 0.1, 0.1, 0.1, 0.7, 0.1, 0.1, 0.1]  # two epochs; the first step is the warm-up
    record = records.vision(warmup_steps=1, epochs=2, images_per_s=8 / (1.3 / 7))
    record["epochs"] = [epoch | {"steps": 4} for epoch in record["epochs"]]
    folder = records.write(tmp_path / "run", record, records.steps(step_s, per_epoch=4))
    run = records.as_run(record | {"folder": str(folder)})
    assert readings.full_run_reading(run, FIGURES["images_per_s"]) == (
        pytest.approx(math.log(8 / 0.1)),
        readings.LEAST_ERROR,
    )


def made(number: int, *words: str) -> Cell:
    task: Any = composed(*words)
    return Cell(
        number=number,
        workload=WORKLOAD,
        composed=task,
        cfg=task,
        folder=Path("a/b"),
        config=typed(*words),
    )


def test_a_group_of_which_options_are_swept_is_one_axis():
    words = [
        ("loader=batched",),
        ("loader=device", "batch_size=8"),
        ("loader=torch", "dataset.image_size=32"),
    ]
    first, second, third = race_cells.settings(
        [made(number, *own) for number, own in enumerate(words)]
    )
    assert (
        first.keys()
        == second.keys()
        == third.keys()
        == {"loader", "batch_size", "dataset.image_size"}
    )
    assert len({own["loader"] for own in (first, second, third)}) == 3
    assert first["batch_size"] == third["batch_size"] != second["batch_size"]


def test_estimates_of_this_machine_are_priors(monkeypatch: pytest.MonkeyPatch):
    """Two ranks of 10 images in 0.1 s; the interval is 1.25 times to either side."""
    cells = [
        made(number, *CPU, *words)
        for number, words in enumerate([("gpus=2", "batch_size=10"), (), ()])
    ]
    told = [
        Prediction(basis, step_s=PredictedInterval(0.1, 0.08, 0.125))
        for basis in ("scaled", "measured", "published")
    ]
    target: Any = None
    monkeypatch.setattr(
        "multicard.estimate.estimates.estimate",
        lambda configs, _: [
            Estimate(config, target, each) for config, each in zip(configs, told, strict=True)
        ],
    )
    first, second, third = race_cells.priors(cells)
    assert first == Prior(
        pytest.approx(math.log(200.0)), pytest.approx(math.log(1.25) / 1.645), "scaled"
    )
    assert second is not None and second.basis == "measured" and third is None


# ---- cells that train by turns


@pytest.fixture
def race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """A race of cells of these batch sizes, by rules that end it after some rounds."""
    races: list[LiveRace] = []

    def make(*sizes: int, rounds: int = 2) -> LiveRace:
        monkeypatch.setattr(live, "Race", Rules)
        monkeypatch.setattr(Rules, "rounds", rounds)
        races.append(LiveRace(faked(sizes, tmp_path, monkeypatch)))
        return races[-1]

    yield make
    for made in races:
        made.journal.close()


def test_a_race_takes_blocks_by_turns_and_ends_those_that_are_out(race: Made, monkeypatch, capsys):
    ran = race(8, 16, 32)
    Process.statuses = {("block", 8): ["ok", "diverged"]}
    ran.run(SHARE)
    blocks = ran.rules._blocks
    known = [(block.round, block.cell, block.process) for block in blocks]
    assert known == [(0, 0, 1), (0, 1, 2), (0, 2, 3), (1, 1, 2), (1, 2, 3)]
    assert Process.log[:5] == [
        ("start", 8),
        ("block", 8),
        ("quiet", 8),
        ("start", 16),
        ("block", 16),
    ]
    assert Process.log[-2:] == [("end", 16), ("end", 32)] and not ran.alive
    assert blocks[0].log_figure == pytest.approx(math.log(8 / 0.1008))
    printed = capsys.readouterr().out
    out = find(printed, "race.out", cell="[1/3]").facts["reason"]
    assert out.has({"status": "diverged", "cause": "of its own"})
    assert says(printed, "race.round", cells={"in": 2, "out": 1, "not started": 0}, ahead="[3/3]")
    finals = FinalRuns(ran).cells()
    assert [cell.cfg.batch_size for cell in finals] == [32, 16] * 3
    assert [cell.cfg.repetition for cell in finals] == [1, 1, 2, 2, 3, 3] and finals[
        0
    ].folder == ran.cells[2].folder
    assert all(cell.cfg.race.figure is None and not cell.cfg.probe.enabled for cell in finals)
    assert all(cell.folder.name.endswith(f"-r{cell.cfg.repetition}") for cell in finals[2:])
    monkeypatch.setattr(command.text_table, "terminal_width", lambda: 120)
    lines = command.end_lines(ran, finals)
    said = "\n".join(line for line in lines if isinstance(line, Message))
    winner = find(said, "race.winner", cell="[3/3]")
    assert says(said, "race.how-sure", tolerance="2%") and not says(said, "race.less-sure")
    assert " images/s (" in winner.facts["figure"]
    assert says(said, "race.accuracy", keys=["batch_size"])
    assert find(lines[-1], "race.command").facts["command"].endswith("batch_size=32")


@pytest.mark.parametrize("over_ranks", [True, False])
def test_a_cell_whose_ranks_train_apart_is_out_of_a_race_over_their_number(
    race: Made, monkeypatch: pytest.MonkeyPatch, over_ranks: bool
):
    ran = race(4, 8)
    ran.over_ranks = over_ranks
    apart = replace(measured([0.1] * 10, 8), apart_by=ApartBy.values)
    monkeypatch.setattr(
        Process, "run_block", lambda self, _: apart if self.size == 8 else measured([0.2] * 10, 4)
    )
    ran.run(SHARE)
    out = ran.rules.standings[1]
    assert out.state == (OUT if over_ranks else IN)
    assert (
        says(str(out.reason), "race.shows-no-speed-up", limit=limits.OTHER_WEIGHTS.code)
        is over_ranks
    )


@pytest.mark.parametrize("status", ["oom", "killed"])  # as the host's out-of-memory killer does
def test_a_cell_without_memory_beside_others_is_tried_alone(race: Made, status: str):
    ran = race(8, 16, 32)
    Process.statuses = {("start", 16): [status, "ok"], ("start", 32): [status, status]}
    ran.run(SHARE)
    (place, reason), *_ = ran.rules._outs.reasons.items()
    expected = (
        {"status": "oom", "cause": "of its own"}
        if status == "oom"
        else {"status": "failed", "cause": KILLED_BY}
    )
    assert (
        place == 2
        and len(ran.rules._outs.reasons) == 1
        and says(reason, "race.ended-by-itself", **expected)
    )
    assert [block.cell for block in ran.rules._blocks] == [0, 1, 0, 1]
    beside_another = [("start", 16), ("end", 8), ("start", 16)]
    assert Process.log[:6] == [("start", 8), ("block", 8), ("quiet", 8), *beside_another]


def test_processes_wait_as_far_as_memory_allows(race: Made, monkeypatch: pytest.MonkeyPatch):
    """Those that have waited longest end for others;
    those that have not trained yet still take theirs.
    """
    ran = race(8, 16, 32, rounds=1)
    ran.peaks = {place: [size * 10**6] for place, size in enumerate((8, 16, 32))}
    monkeypatch.setattr(processes, "free_bytes", lambda _: (60 - 16 * len(ran.alive)) * 10**6)
    ran.run(SHARE)
    assert [size for what, size in Process.log if what == "end"] == [8, 16, 32]
    started = Process.log.index(("start", 32))
    assert Process.log.index(("block", 16)) < Process.log.index(("end", 8)) < started
    ran.journal.close()
    ran = race(8, 16, 32)  # from the journal
    assert ran.peaks == {0: [8 * 10**6], 1: [16 * 10**6], 2: [32 * 10**6]}
    monkeypatch.setattr(processes, "free_bytes", lambda _: 1000)
    # on the host the memory of all ranks counts
    ran.share, ran.peaks = SHARE, {0: [100, 200], 1: [300], 2: [300]}
    ran._start_processes(range(3))
    assert [*ran.alive] == [0, 1, 2]  # 300 each, of 900
    assert not ran._has_room(0)
    ran.alive[1].run_block(0.0)
    assert ran._has_room(0)


@pytest.mark.parametrize("shared", [True, False])
def test_data_that_is_gone_ends_a_race_only_where_all_cells_read_it(
    tmp_path: Path, monkeypatch, shared: bool
):
    monkeypatch.setattr(live, "Race", Rules)
    cells = faked([8, 16], tmp_path, monkeypatch)
    if not shared:
        cells[0].cfg.dataset.name = "another"
    record = {
        "status": "failed",
        "cause": {"kind": "refused", "message": "dataset.root=elsewhere: no such folder"},
    }
    start = processes.start

    def gone(executor: Any, cell: Any, *rest: Any) -> Any:
        if cell.cfg.batch_size == 8:
            raise CellEndedError(records.as_run(record))
        return start(executor, cell, *rest)

    monkeypatch.setattr(processes, "start", gone)
    ran = LiveRace(cells)
    with pytest.raises(SameFailureError) if shared else nullcontext():
        ran.run(SHARE)
    assert [*ran.rules._outs.reasons] == ([] if shared else [0])
    if not shared:
        assert says(
            ran.rules._outs.reasons[0],
            "race.ended-by-itself",
            status="failed",
            cause=record["cause"]["message"],
        )
    ran.journal.close()


def test_a_process_that_is_killed_is_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (cell,) = faked([8], tmp_path, monkeypatch)
    cell.folder.mkdir()
    executor = Executor(tmp_path)
    job = SimpleNamespace(done=lambda: True, job_id="17")
    executor.running.append(Running(cell, job, SHARE))
    process = CellProcess(cell, 1, executor, executor.running[0], BlockReader(cell.folder))
    with pytest.raises(CellEndedError) as ended:
        process.wait()
    record = ended.value.run.record
    assert (
        record.status == "failed" and record.cause is not None and NO_RECORD in record.cause.message
    )


def test_a_process_takes_a_folder_without_a_finished_record(
    race: Made, monkeypatch: pytest.MonkeyPatch
):
    ran = race(8, rounds=1)
    first = processes.as_run(ran.cells[0], 1, is_probe=True).folder
    monkeypatch.setattr(run_folder, "finished", lambda folder: {} if folder == first else None)
    ran.share = SHARE
    cell = ran._start_process(0).cell
    assert first.name.endswith("-probe") and cell.folder.name.endswith("-r2-probe")
    assert cell.cfg.probe.enabled and cell.config.probe.enabled


def test_a_race_waits_for_the_machine_and_has_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(shares.VARIABLE, str(tmp_path / "leases"))
    monkeypatch.setattr(shares, "LEASES_POLL_S", 0.0)
    names = shares.machine().names
    of_another, waited = shares.hold(names[-1:]), list[float]()
    monkeypatch.setattr(
        processes, "pause", lambda seconds: of_another.close() or waited.append(seconds)
    )
    (cell,) = faked([8], tmp_path, monkeypatch)

    def free() -> list[str]:
        with shares.choosing() as choice:
            return [name for name in names if choice is not None and choice.is_free(name)]

    with processes.whole_machine(cell.config) as share:
        assert waited and not {*free()} & {*share.names}
    assert free() == [*names]


def test_the_load_beside_blocks_is_kept_and_a_journal_without_it_reads_as_calm(race: Made):
    ran = race(8, 16)
    Process.load = {8: 0.5}
    ran.run(SHARE)
    ran.journal.close()
    lines = [json.loads(line) for line in ran.journal.path.read_text().splitlines()]
    kept = {line["cell"]: line["busy"] for line in lines if "log_figure" in line}
    assert kept == {0: 0.5, 1: 0.0}
    assert {block.cell for block in ran.rules._estimated_blocks if block.slowed} == {0}
    again = race(8, 16)
    assert {block.cell: block.busy for block in again.rules._blocks} == kept
    again.journal.close()
    old = [{key: value for key, value in line.items() if key != "busy"} for line in lines]
    ran.journal.path.write_text("".join(json.dumps(line) + "\n" for line in old))
    assert {block.busy for block in race(8, 16).rules._blocks} == {0.0}


def test_a_race_in_bursts_says_so_once_and_claims_nothing(
    race: Made, monkeypatch: pytest.MonkeyPatch
):
    ran = race(8, 16, 32)
    Process.load = {8: 0.5, 16: 0.5}
    ran.run(SHARE)
    monkeypatch.setattr(command.text_table, "terminal_width", lambda: 120)
    lines = command.end_lines(ran, FinalRuns(ran).cells())
    said = "\n".join(line for line in lines if isinstance(line, Message))
    assert says(said, "race.not-sure", disturbed=4, blocks=6)
    assert not says(said, "race.how-sure") and not says(said, "race.less-sure")


# ---- what ends a race early


def test_a_disk_that_is_full_for_the_race_itself_ends_it_and_what_runs(
    race: Made, monkeypatch: pytest.MonkeyPatch
):
    ran = race(8, 16)
    ended: list[Any] = []
    monkeypatch.setattr(Executor, "interrupt", lambda self: ended.extend(self.running))

    def fill(process: Process) -> None:
        ran.journal._file.close()
        ran.journal._file = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")

    monkeypatch.setattr(Process, "wait_until_quiet", fill)
    with pytest.raises(JournalError, match=r"images_per_s\.jsonl.*No space left"):
        ran.run(SHARE)
    assert len(ended) == 2  # both that had started
    ran.journal.close()
    race(8, 16)  # the lock was let go


@pytest.mark.parametrize("error", [SameFailureError, JournalError])
def test_a_race_that_a_full_disk_stops_says_how_it_goes_on(
    tmp_path: Path, monkeypatch, capsys, error: type[Exception]
):
    def run(*_: Any) -> None:
        raise error("a cause")

    monkeypatch.setattr(command, "run", run)
    monkeypatch.setattr(sys, "orig_argv", ["python", "train_vision.py", "-m", "race=images_per_s"])
    raced = sweep(*faked([8], tmp_path / "today", monkeypatch))
    context: Any = None
    config: Any = OmegaConf.create({"dry_run": False, "race": {"figure": "images_per_s"}})
    SweepBatches(raced.command, context, config, on_slurm=False, packs=False)._race(raced)
    printed = capsys.readouterr().err
    assert (
        "a cause" in printed and "python train_vision.py -m race=images_per_s name=today" in printed
    )
    assert raced.command.abandoned


def test_a_dry_run_of_a_race_says_what_it_would_measure(called: Called, tmp_path: Path):
    words = (
        "race=images_per_s",
        "dry_run=true",
        "lr=0.1,0.2",
        *SMALL,
        f"hydra.sweep.dir={tmp_path / 'b'}",
    )
    code, printed = called("-m", *words)
    assert (
        code == 0
        and printed.count("lr=0.") == 2
        and says(printed, "launch.as-race", figure="images_per_s")
    )
    assert not (tmp_path / "b").exists()


@pytest.mark.usefixtures("processes")
@pytest.mark.slow
def test_a_race_of_two_cells_measures_them_in_an_allocation_of_slurm(
    called: Called, tmp_path: Path, monkeypatch
):
    """As by srun."""
    for name, value in {
        "JOB_ID": "17",
        "NTASKS": "1",
        "PROCID": "0",
        "NODEID": "0",
        "JOB_NODELIST": "n[1-2]",
    }.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setattr(environment, "_is_in_job", lambda _: True)
    words = [word for word in SMALL if not word.startswith("batch_size")]
    words += ["model.width=0.35", "batch_size=4,16", "dataset.train_limit=16", "race=images_per_s"]
    code, printed = called("-m", *words, f"hydra.sweep.dir={tmp_path}")
    assert code == 0 and says(printed, "race.winner"), printed
    assert find(printed, "race.in-full", runs=2).facts["reason"].code == "race.not-worth"
    finals = [json.loads(path.read_text()) for path in tmp_path.glob("*/result.json")]
    assert [final["status"] for final in finals] == ["ok"] * 2
    assert {final["config"]["race"]["figure"] for final in finals} == {None}
    # the cells' own processes do not have the stand-in, so these variables count as leaked there
    paths = [*tmp_path.glob("*/environment.json")]
    assert len(paths) == 2 and not any(
        (json.loads(path.read_text())["slurm"] or {}).values() for path in paths
    )
