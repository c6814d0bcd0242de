"""A race on CPU ranks of which one is killed, and then the command: it goes on to its winner."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from multicard.decide.race.live import FOLDER
from multicard.records import ownership, rank_files
from tests.conftest import PATIENCE_S, ROOT, SMALL, assert_gone, awaited

WORDS = (*SMALL, "lr=0.1,0.2", "model.width=0.35", "race=images_per_s", "race.block=0.5")


@pytest.mark.usefixtures("processes")
@pytest.mark.slow
def test_a_race_goes_on_after_a_killed_rank_and_after_a_killed_command(tmp_path: Path):
    def start() -> subprocess.Popen[str]:
        line = [sys.executable, "-m", "tests.helpers.race_entry", "-m", *WORDS, f"hydra.sweep.dir={tmp_path}"]
        one = subprocess.STDOUT
        return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=one, text=True, cwd=ROOT, start_new_session=True)

    def known(wanted: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
        (path,) = tmp_path.glob(f"{FOLDER}/*.jsonl")
        lines = path.read_text().splitlines(keepends=True)
        return [line for line in map(json.loads, (each for each in lines if each.endswith("\n"))) if wanted(line)]

    def starts(cell: int) -> list[dict[str, Any]]:
        return known(lambda line: line.get("cell") == cell and "process" in line and "round" not in line)

    first = start()
    awaited(lambda: [*tmp_path.glob(f"{FOLDER}/*.jsonl")] and known(lambda line: "log_figure" in line))
    victim = known(lambda line: "log_figure" in line)[0]["cell"]
    (folder,) = tmp_path.glob(f"*{known(lambda line: 'cells' in line)[0]['cells'][victim]}-probe")
    (rank,) = rank_files.read(folder)
    assert len(starts(victim)) == 1
    os.kill(rank.pid, signal.SIGKILL)
    awaited(lambda: len(starts(victim)) == 2)  # tried again alone, as its rank may have wanted the other's memory
    family = psutil.Process(first.pid).children(recursive=True)
    first.kill()
    first.communicate(timeout=PATIENCE_S)
    assert_gone(family)

    second = start()
    said, _ = second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 0, said
    assert "goes on after" in said and "winner: [" in said
    results = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("*/result.json")}
    probes = [record for name, record in results.items() if name.endswith("-probe") and record["status"] == "ok"]
    (final,) = [record for name, record in results.items() if not name.endswith("-probe")]
    assert final["status"] == "ok" and final["probe"] is None and final["config"]["race"]["figure"] is None
    assert {probe["probe"]["ended_by"] for probe in probes} == {"race"}
    assert all(probe["load"]["others_cores"] >= 0 and probe["beside"] is None for probe in probes)
    assert not [*tmp_path.glob(f"*/{ownership.RUNNING}")]
