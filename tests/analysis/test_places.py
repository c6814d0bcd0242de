"""Every table and figure of both papers has its place, and what it takes in full."""

from analysis import experiments
from analysis.report import gaps_section, papers_section
from analysis.report.blocks import Facts, Fold, PlainTable
from multicard import workloads
from papers import printed

BOTH = [*(f"Table {number}" for number in range(1, 6))]
LATER = [*BOTH, *(f"Fig. {number}" for number in range(1, 18))]
EARLIER = [*BOTH, *(f"Fig. {number}" for number in range(1, 7))]
# Figures of 2503.15252 and the same ones of 2505.22905
SAME = {"Fig. 2": "Fig. 2", "Fig. 3": "Fig. 3", "Fig. 4": "Fig. 10", "Fig. 5": "Fig. 11", "Fig. 6": "Fig. 12"}


def test_each_table_and_figure_of_both_papers_is_there_once():
    for paper, expected in (("in_2505", LATER), ("in_2503", EARLIER)):
        assert sorted(getattr(place, paper) for place in printed.places() if getattr(place, paper)) == sorted(expected)
    same = {place.in_2503: place.in_2505 for place in printed.places() if place.in_2503.startswith("Fig")}
    assert same == SAME | {"Fig. 1": ""}


def test_each_is_measured_by_an_experiment_or_says_where_it_stands():
    measured = {place.name: experiments.measuring(place) for place in printed.places()}
    for place in printed.places():
        assert bool(measured[place.name]) != bool(place.where), place.name
        assert place.shows and place.form
    of_entries = {name for workload in workloads.WORKLOADS for name in workloads.experiments(workload)}
    assert {name for names in measured.values() for name in names} == of_entries
    assert measured["Fig. 1"] == [] and measured["Fig. 1 of 2503.15252"] == ["strategies"]
    assert measured["Fig. 9"] == ["layout"] and "datasets" in measured["Fig. 10 (Fig. 4 of 2503.15252)"]


def test_every_experiment_says_what_it_takes_in_full():
    assert all(map(printed.in_full, experiments.names()))
    assert "12 cells on 1 to 4 GPUs, 7.9 hours (15.9 GPU hours), 100 MB on disk" in printed.in_full("table2")


def test_the_report_has_every_place_and_the_commands_that_fill_it():
    panels = [(experiments.load(name), []) for name in experiments.names()]
    table, others, data_sets = papers_section.section([], panels).blocks
    assert isinstance(table, PlainTable) and isinstance(others, Fold) and isinstance(data_sets, Fold)
    (unmeasured,) = others.blocks
    assert isinstance(unmeasured, PlainTable) and others.title.startswith(f"{len(unmeasured.rows)} others")
    by_name = {row[0]: row for row in (*table.rows, *unmeasured.rows)}
    assert {*by_name} == {place.name for place in printed.places()}
    assert {row[0] for row in table.rows} == {place.name for place in printed.places() if place.where}
    assert by_name["Table 3"][3] == "not measured" and by_name["Table 3"][4].startswith("8 cells on 1 to 4 GPUs, ")
    assert "table2: 12 cells on 1 to 4 GPUs, 7.9 hours" in by_name["Table 2"][4]
    assert "nsys" in by_name["Table 1"][5] and by_name["Table 4"][2] == ""
    (sizes,) = data_sets.blocks
    assert isinstance(sizes, PlainTable)
    assert any(row[0] == "grammar" and "185,000,000" in row for row in sizes.rows)
    (commands,) = (block for block in gaps_section.section([], [], panels).blocks if isinstance(block, Facts))
    of_table2 = next(says for says, command in commands.rows if "experiment=table2 " in f"{command} ")
    assert "In full: 12 cells on 1 to 4 GPUs, 7.9 hours" in of_table2
