"""Text tables: alignment, width, wrapping, foreign text, and their other formats."""

import pytest
from rich.cells import cell_len

from multicard.records import text_table
from tests.conftest import calls_of

HEADINGS = ["name", "total s", "commit"]
LONG = [["a" * 40, "1,234", "b " * 20], ["界" * 30, "-", "x"]]


def test_columns_of_figures_are_aligned_to_the_right():
    rows = [["fp16", "1,234.5", "98.10% ± 0.20", "1.67 (83%)", "-"], ["fp64", "-", "97.00%", "", "5 GB"]]
    assert text_table.text(["precision", "s", "accuracy", "x", "memory"], rows) == [
        "precision        s       accuracy           x  memory",
        "fp16       1,234.5  98.10% ± 0.20  1.67 (83%)       -",
        "fp64             -         97.00%                5 GB",
    ]
    assert text_table.alignment(["status", "dash"], [["2 ok, 1 failed", "-"]]) == "lr"
    assert text_table.text(["a", "b"], []) == ["a  b"]


@pytest.mark.parametrize("wrap", [False, True])
def test_a_table_keeps_to_the_width_and_changes_no_figure(wrap: bool):
    lines = text_table.text(HEADINGS, LONG, 40, wrap=wrap)
    assert all(cell_len(line) <= 40 for line in lines)
    assert "1,234" in lines[1]
    assert ("…" in lines[1] and "…" in lines[2]) != wrap
    letters = "".join(lines[1:])
    assert not wrap or (letters.count("a"), letters.count("b"), letters.count("界")) == (40, 20, 30)


def test_nothing_is_cut_without_a_width_or_below_the_least_width():
    assert text_table.text(HEADINGS, LONG)[1].split() == [LONG[0][0], "1,234", *["b"] * 20]
    assert text_table.text(HEADINGS, LONG, 10, least_width=12)[1] == f"{'a' * 11}…    1,234  b b b b b b…"


def test_cells_of_several_lines_and_blank_rows():
    lines = text_table.text(["claim", "figures"], [["one", "1 s\n2 s"], ["", ""], ["  two", "3 s"]])
    assert lines == ["claim  figures", "one    1 s", "       2 s", "", "  two  3 s"]


def test_text_of_a_run_drives_no_terminal_and_is_no_markup():
    name = "[red]x\x1b[2J\u202e|*&_"
    for content in ("\n".join(text_table.text(["n"], [[name]])), text_table.Table(["n"], [[name]]).markdown()):
        assert "\x1b" not in content and "\u202e" not in content
    assert text_table.text(["n"], [[name]])[1] == "[red]x�[2J�|*&_"
    assert text_table.clean("one\ntwo\x1b") == "one two�"
    assert r"\[red\]x�\[2J�\|\*\&\_" in text_table.Table(["n"], [[name]]).markdown()


def test_markdown_latex_and_csv():
    headings, rows = ["name", "s"], [["a_b\nc", "1.0 ± 0.2"]]
    assert [line.replace(" ", "") for line in text_table.Table(headings, rows).markdown().split("\n")] == [
        "|name|s|",
        "|:----------|----------:|",
        r"|a\_b<br>c|1.0±0.2|",
    ]
    latex = text_table.Table(headings, [["x_y", "1.0 ± 0.2"]]).latex()
    assert r"\begin{tabular}{lr}" in latex and r"x\_y" in latex and r"1.0 $\pm$ 0.2 \\" in latex
    assert text_table.escape_latex("a_b ÷ ~") == r"a\_b $\div$ \textasciitilde{}"
    assert text_table.to_csv(headings, [["a,b", 1.23456789], [None, True]]) == 'name,s\n"a,b",1.23456789\n,True\n'


def test_the_work_of_a_table_grows_no_faster_than_its_rows():
    rows = [[f"run {i}", "ok", f"{i * 3.7:.1f}", "12.3 MB", "node1, 界" * 4] * 3 for i in range(2000)]
    headings = [f"heading {i}" for i in range(15)]
    few, many = (calls_of(lambda count=count: text_table.text(headings, rows[:count], 120)) for count in (500, 2000))
    assert many < 5 * few
