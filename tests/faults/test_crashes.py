"""What a power cut may leave of a write, at every point of it:
whoever reads finds the old or the new, never a part.

The file system is taken to keep changes of names in their order, as ext4, XFS and Btrfs do, and of
a file's content
what was synced: of the rest all, half or nothing.
"""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from multicard.ranks import checkpoint
from multicard.ranks.process import Rank
from multicard.records import run_folder
from multicard.records.journal import Journal
from tests.helpers import records
from tests.records.test_record import step_columns

# calls after which a state is noted
CHANGES = ("open", "fsync", "replace", "rename", "unlink", "rmdir", "mkdir")
State = dict[str, bytes | None]  # of files by path; folders have None


class Disk:
    """The states in which a folder may be found after a power cut
    during what is done to it in this context.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.states, self._patch = folder, list[State](), pytest.MonkeyPatch()
        self._synced = {
            path.stat().st_ino: path.read_bytes() for path in folder.rglob("*") if path.is_file()
        }

    def __enter__(self) -> "Disk":
        for name in CHANGES:
            self._patch.setattr(os, name, self._noting(name, getattr(os, name)))
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def _noting(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **options: Any) -> Any:
            result = call(*arguments, **options)
            if name == "fsync":
                self._synced[os.fstat(arguments[0]).st_ino] = Path(
                    f"/proc/self/fd/{arguments[0]}"
                ).read_bytes()
            elif name == "open" and arguments[1] & os.O_EXCL:
                self._synced.pop(os.fstat(result).st_ino, None)  # a number that was used before
            if name != "open" or arguments[1] & os.O_CREAT:
                self._note()
            return result

        return noted

    def _note(self) -> None:
        paths = sorted(self.folder.rglob("*"))
        for share in (1.0, 0.5, 0.0):  # of what was not synced
            state: State = {}
            for path in paths:
                content = None if path.is_dir() else path.read_bytes()
                if content is not None and content != (
                    synced := self._synced.get(path.stat().st_ino, b"")
                ):
                    content = synced if share == 0.0 else content[: int(len(content) * share)]
                state[str(path.relative_to(self.folder))] = content
            if state not in self.states:
                self.states.append(state)

    def seen(self, read: Callable[[Path], Any]) -> list[Any]:
        """What `read` finds after each power cut, repeated answers once."""
        found, folder = [], self.folder.with_name("found")
        for state in self.states:
            folder.mkdir()
            for name, content in state.items():
                path = folder / name
                (
                    path.mkdir(parents=True, exist_ok=True)
                    if content is None
                    else path.write_bytes(content)
                )
            if (answer := read(folder)) not in found[-1:]:
                found.append(answer)
            shutil.rmtree(folder)
        return found


def test_a_record_is_the_old_or_the_new(tmp_path: Path):
    folder = tmp_path / "cell"
    records.put(folder, records.vision(status="failed"))
    with Disk(folder) as cut:
        records.put(folder, records.vision())

    def status(found: Path) -> str | None:
        run = run_folder.read_run(found)
        return run and run.status

    assert cut.seen(status) == ["failed", "ok"] and len(cut.states) > 2


def test_steps_stay_whole_while_they_are_merged(tmp_path: Path):
    folder = tmp_path / "cell"
    for rank in (0, 1):
        run_folder.write_steps(folder, rank, 0, step_columns(rank))
    every = run_folder.read_steps(folder)
    with Disk(folder) as cut:
        run_folder.merge_steps(folder)
    assert (
        cut.seen(lambda found: run_folder.read_steps(found).equals(every)) == [True]
        and len(cut.states) > 5
    )


def test_a_checkpoint_counts_once_all_ranks_have_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder, first = tmp_path / "cell", Rank(0, 0, 2, torch.device("cpu"), "gloo", 1)
    both, steps = (first, replace(first, rank=1)), 0

    def meet(rank: Rank) -> None:
        """The other rank comes here last."""
        if rank.rank == 0:
            checkpoint.save(folder, both[1], steps, {"steps": steps})

    monkeypatch.setattr(checkpoint, "meet", meet)
    monkeypatch.setattr(checkpoint, "max_over_ranks", lambda _, own: own)
    cuts = []
    for steps in (3, 5):
        with Disk(folder) as cut:
            checkpoint.save(folder, first, steps, {"steps": steps})
        cuts.append(
            cut.seen(lambda found: [checkpoint.load_checkpoint(found, rank) for rank in both])
        )
    none, three, five = [None, None], [{"steps": 3}] * 2, [{"steps": 5}] * 2
    assert cuts == [[none, three], [three, five]]
    with Disk(folder) as cut:
        checkpoint.remove(folder)
    assert cut.seen(lambda found: [checkpoint.load_checkpoint(found, rank) for rank in both]) == [
        none
    ]


def test_of_a_journal_all_whole_entries_count_and_it_goes_on_behind_them(tmp_path: Path):
    path, entries = tmp_path / "journal.jsonl", [{"cell": 1}, {"cell": 22}]
    journal = Journal(path, "")
    for entry in entries:
        journal.add(**entry)
    journal.close()
    content = path.read_bytes()
    assert content.splitlines() == [json.dumps(entry).encode() for entry in entries]
    for length in range(len(content) + 1):
        path.write_bytes(content[:length])
        known = entries[: content[:length].count(b"}")]
        for more in ({"cell": 3}, {"cell": 4}):
            journal = Journal(path, "")
            assert journal.entries == known
            journal.add(**more)
            journal.close()
            known = [*known, more]
