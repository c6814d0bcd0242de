"""A journal: what it keeps, whose it is, and what ends it."""

import os
from pathlib import Path

import pytest

from multicard.records.journal import Journal, JournalError

HEAD = {"code": ["a", ""]}


def test_entries_are_kept_to_the_last_whole_line(tmp_path: Path):
    path = tmp_path / "deeper" / "images_per_s.jsonl"
    first = Journal(path, "name=a: its race", HEAD)
    first.add(cell="1", out="beaten")
    first.close()
    with path.open("a") as file:
        file.write('{"cell": "2", "ou')
    again = Journal(path, "name=a: its race", HEAD)
    assert again.entries == [{"cell": "1", "out": "beaten"}]
    again.add(cell="3")
    assert [entry["cell"] for entry in again.entries] == ["1", "3"]
    with pytest.raises(ValueError, match=r"^name=a: its race: another command has it now; choose another name$"):
        Journal(path, "name=a: its race", HEAD)
    again.close()
    with pytest.raises(ValueError, match=r"^name=a: its race: it was cut off with another code; choose another"):
        Journal(path, "name=a: its race", {"code": ["b", ""]})
    third = Journal(path, "a", HEAD)
    assert [entry["cell"] for entry in third.entries] == ["1", "3"]
    third.close()
    anew = Journal(path, "a", {"code": ["b", ""]}, anew=True)
    assert anew.entries == []
    anew.close()


def test_a_journal_without_a_head_takes_all_entries(tmp_path: Path):
    for expected in ([], [{"began": 1}]):
        journal = Journal(tmp_path / "events.jsonl", "--name a")
        assert journal.entries == expected
        journal.add(began=1)
        journal.close()


def test_a_full_disk_is_said(tmp_path: Path):
    journal = Journal(tmp_path / "events.jsonl", "--name a")
    journal._file.close()
    journal._file = os.fdopen(os.open("/dev/full", os.O_WRONLY), "w")
    with pytest.raises(JournalError, match=r"^cannot write to .*events\.jsonl: No space left on device$"):
        journal.add(began=1)
    journal.close()
