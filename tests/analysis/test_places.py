"""Every experiment is in docs/papers.md, and says what it takes in full."""

import re

from analysis import experiments
from analysis.report import papers_section
from analysis.report.blocks import Facts, Fold
from papers import printed
from tests.conftest import ROOT


def test_every_experiment_is_a_row_of_the_page_and_says_what_it_takes_in_full():
    rows = re.findall(r"^\| .*\| `(\w+)` \|$", (ROOT / "docs" / "papers.md").read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(experiments.names()) and all(map(printed.in_full, experiments.names()))
    panels = [(experiments.load(name), []) for name in experiments.names()]
    folds = [block for block in papers_section.of_papers([], panels, []).blocks if isinstance(block, Fold)]
    (commands,) = (block for fold in folds for block in fold.blocks if isinstance(block, Facts))
    of_table2 = next(says for says, command in commands.rows if "experiment=table2 " in f"{command} ")
    assert "In full: 12 cells on 1 to 4 GPUs, 7.9 hours (15.9 GPU hours), 100 MB on disk" in of_table2
