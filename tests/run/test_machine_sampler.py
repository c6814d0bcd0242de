"""CPU and memory of the machine while a run is measured."""

from pathlib import Path

from multicard.measure.timing import clock_s
from multicard.records import rank_files, run_folder
from multicard.records.rank_files import VisionReport
from multicard.run.machine_sampler import MachineSampler
from multicard.tracking import history
from multicard.tracking.timeline import Timeline
from tests.helpers import records


def sampled(folder: Path, attempt: int, trains: bool = True) -> None:
    sampler = MachineSampler(folder, attempt)
    with sampler:
        if trains:
            rank_files.write(folder, VisionReport(rank=0, started_s=clock_s()))
    sampler.write()


def test_each_attempt_adds_its_samples_by_the_time_since_its_training_began(tmp_path: Path):
    sampled(tmp_path, 0)
    sampled(tmp_path, 1)
    sampled(tmp_path, 2, trains=False)  # the rank's file is that of the attempt before
    table = run_folder.read_machine(tmp_path)
    assert table.column_names == ["start", "time_s", "cpu", "memory"]
    assert table["start"].to_pylist() == [0, 1, 2]
    assert all(0 <= time_s < 60 for time_s in table["time_s"].to_pylist())
    assert all(0 <= share <= 1 for name in ("cpu", "memory") for share in table[name].to_pylist())

    later = records.segment(12) | {"started_at": "2026-11-21T10:41:29Z", "ended_at": None, "trained_s": 40.0}
    timeline = Timeline.of(records.as_record({"segments": [records.segment(), later], "startup_s": 5.0}))
    found = history.samples(tmp_path, None, timeline)
    (first, row), *_ = found
    assert len(found) == 3 and set(row) == {"cpu", "memory_percent"} and 0 < row["memory_percent"] <= 100
    assert first == timeline.attempts[0].training_at + table["time_s"][0].as_py()


def test_a_cell_of_a_race_is_not_sampled(tmp_path: Path):
    sampler = MachineSampler(tmp_path, 0, enabled=False)
    with sampler:
        pass
    sampler.write()
    assert not list(tmp_path.iterdir())
