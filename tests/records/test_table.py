"""The table at the end and which runs it compares; text tables and other formats."""

from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

from multicard.measure import formulas
from multicard.records import comparable, limits, table, text_table
from tests.conftest import calls_of
from tests.helpers import records
from tests.helpers.messages import Told, find, says, told

TUNED = {
    "kind": "llm",
    "iteration_s": {"mean": 0.1, "definition": formulas.STEP_DEFINITION},
    "loss": {"first": 2.0, "mean_of_last_tenth": 1.0},
    "tokens_per_s": {"non_padding": 10.0},
}


def result(total_s: float, status: str = "ok", **changes: Any) -> dict[str, Any]:
    """A run's record; `changes` of its configuration."""
    figures = {
        "peak_memory_bytes": {"max": 5_432_000_000},
        "transfer_bytes": {"h2d": 999},
        "test_accuracy": 0.98765,
    }
    return records.vision(status=status, total_s=total_s, **figures, **changes) | {
        "folder": f"multirun/x/{total_s}"
    }


def printed(made: list[dict[str, Any]]) -> list[list[str]]:
    return [line.split() for line in lines_of(made)]


def lines_of(made: list[dict[str, Any]]) -> list[str]:
    return table.lines([records.as_run(record) for record in made])


def test_efficiency_is_against_one_gpu_of_the_same_kind():
    made = [
        result(100.0, precision="fp64"),
        result(60.0, precision="fp64", gpus=2),
        result(40.0, precision="fp16"),
        result(25.0, precision="fp16", gpus=2),
    ]
    header, *rows, alike = lines_of(made)
    assert header.split() == ["precision", "gpus", "total", "s", "x", "1", "GPU"]
    assert [row.split()[2:] for row in rows] == [
        ["100.0", "1.00", "(100%)"],
        ["60.0", "1.67", "(83%)"],
        ["40.0", "1.00", "(100%)"],
        ["25.0", "1.60", "(80%)"],
    ]
    figures = {
        "images/s": "1,234",
        "accuracy": "98.77%",
        "peak memory": "5.43 GB",
        "to device": "999 B",
    }
    assert find(alike, "table.alike").facts["values"] == {"status": "ok"} | figures
    assert printed(made[:1])[1] == [
        "fp64",
        "1",
        "ok",
        "100.0",
        "1,234",
        "98.77%",
        "5.43",
        "GB",
        "999",
        "B",
    ]


def test_repetitions_and_seeds_are_one_row_with_their_mean_and_deviation():
    made = [
        result(100.0),
        result(104.0, repetition=2),
        result(60.0, gpus=2),
        result(58.0, gpus=2, seed=7),
    ]
    made[1] |= {"peak_memory_bytes": {"max": 6_000_000_000}, "test_accuracy": 0.98}
    rows = printed([*made, result(1.0, status="failed", gpus=2, seed=8)])
    cells = [
        (
            "gpus",
            "n",
            "status",
            "total s",
            "images/s",
            "x 1 GPU",
            "accuracy",
            "peak memory",
            "to device",
        ),
        ("1", "2", "ok", "102.0 ± 2.8", "1,234", "1.00 (100%)", "98.38% ± 0.54", "6 GB", "999 B"),
        ("2", "2", "ok", "59.0 ± 1.4", "1,234", "1.73 (86%)", "98.77%", "5.43 GB", "999 B"),
        ("2", "-", "failed", *["-"] * 6),
    ]
    assert [" ".join(words) for words in rows[:4]] == [" ".join(row) for row in cells]
    made[3]["images_per_s"] = None  # too short: the other run alone is no mean
    assert printed(made)[2][:7] == ["2", "59.0", "±", "1.4", "-", "1.73", "(86%)"]
    narrow = table.lines([records.as_run(record) for record in made], 70)
    assert "to device" not in narrow[0] and len(narrow[0]) <= 70 and "peak memory" in narrow[0]


def test_disturbed_runs_are_left_out_of_a_setting_that_has_others():
    made = [
        result(100.0),
        result(300.0, repetition=2),
        result(102.0, repetition=3),
        result(60.0, gpus=2),
    ]
    made += [result(90.0, gpus=2, repetition=2), result(104.0, repetition=4)]
    for record in (made[1], made[3], made[4]):
        record["load"] = record["load"] | {"others_cores": record["cores"] / 2}
    rows = printed(made)
    assert rows[1][:9] == ["1", "3", "of", "4", "ok", "102.0", "±", "2.0", "1.00"]
    assert rows[2][:6] == ["2", "2", "ok&", "75.0", "±", "21.2"]  # each was disturbed
    assert says("\n".join(lines_of(made)), "runs.left-out", runs=1)
    assert not says("\n".join(lines_of(made[3:])), "runs.left-out")


def test_efficiency_counts_the_ranks_of_all_nodes():
    times_s = {(1, 1): 100.0, (2, 1): 55.0, (2, 4): 16.0}
    made = [result(total_s, nodes=nodes, gpus=gpus) for (nodes, gpus), total_s in times_s.items()]
    _, *rows = printed(made)[:4]
    assert [row[3:] for row in rows] == [["1.00", "(100%)"], ["1.82", "(91%)"], ["6.25", "(78%)"]]
    tuned = [
        result(50.0, nodes=nodes, gpus=gpus, method="lora", template="instruct")
        | {**TUNED, "tokens_per_s": {"non_padding": 1000.0 / total_s}}
        for (nodes, gpus), total_s in times_s.items()
    ]
    shares = [share for line in printed(tuned) for share in line if share.endswith("%)")]
    assert shares == ["(100%)", "(91%)", "(78%)"]


@pytest.mark.parametrize("status", ["failed", "diverged"])
def test_a_run_without_figures_is_shown_with_its_cause_and_never_a_reference(status: str):
    made = [
        result(100.0, status=status) | {"cause": {"message": "the loss is not finite"}},
        result(50.0, gpus=2),
    ]
    _, first, second, *_ = printed(made)
    # the two comparisons are left out: nothing can be compared
    assert first[1:] == [status, *["-"] * 5]
    assert second[1:5] == ["ok", "50.0", "1,234", "98.77%"]


def on_ranks(
    total_s: float, gpus: int, threads: int = 2, data: str = "a1", **more: Any
) -> dict[str, Any]:
    content = {"fingerprint": data, "parts": {"dataset": data}, "bytes": 1, "hashed_bytes": 1}
    return (
        result(total_s, gpus=gpus, device="cpu")
        | {"threads": threads, "data": content, "cores": 4}
        | more
    )


def test_an_efficiency_that_cannot_be_is_marked_with_the_likely_reason():
    lines = lines_of([on_ranks(100.0, 1), on_ranks(45.6, 2), on_ranks(22.0, 4, threads=1)])
    assert lines[2].endswith("2.19 (110%)") and "4.55 (114%)?" in lines[3]
    (why,) = [line for line in lines if line.startswith("? ")]
    assert says(why, "notes.doubtful", above=1.1)
    assert not any(
        line.startswith("?") for line in lines_of([on_ranks(100.0, 1), on_ranks(45.5, 2)])
    )


def test_runs_on_other_data_are_not_compared_and_are_told_apart():
    header, _, two, *_ = printed([on_ranks(100.0, 1), on_ranks(50.0, 2, data="b2")])
    assert "data" in header and two == ["2", "b2", "50.0", "-"]
    alike = [on_ranks(100.0, 1), on_ranks(90.0, 1, data="b2")]
    header, *rows = printed(alike)
    assert "data" in header and [row[header.index("data")] for row in rows[:2]] == ["a1", "b2"]
    older = [on_ranks(100.0, 1) | {"data": None}, on_ranks(50.0, 2) | {"data": None}]
    assert "2.00 (100%)" in lines_of(older)[2]  # which do not say: as before


def test_a_loaded_machine_and_ranks_that_take_turns_are_marked():
    busy = {"others_cores": 1.6, "stolen_cores": 0.0}
    lines = lines_of(
        [on_ranks(9.0, 1, load=busy), on_ranks(9.0, 8, threads=1), on_ranks(9.0, 2, beside=1)]
    )
    assert [line.split()[1] for line in lines[1:4]] == ["ok&", "ok>", "ok"]
    assert says("\n".join(lines), "notes.loaded", cores=1.6, of=4, runs=1)
    assert says("\n".join(lines), "notes.mark", sign=">", mark="crowded", runs=1)
    assert says("\n".join(lines), "notes.mark", sign="", mark="beside_others", runs=1)
    stolen = [
        {"others_cores": 0.2, "stolen_cores": 1.0},
        {"others_cores": None, "stolen_cores": 2.0},
    ]
    lines = lines_of([on_ranks(9.0, gpus, load=load) for gpus, load in enumerate(stolen, 1)])
    assert says("\n".join(lines), "notes.loaded", cores=2.0, of=4, runs=2)
    quiet = lines_of([on_ranks(9.0, 1, load={"others_cores": 0.3, "stolen_cores": 0.05})])
    assert not says("\n".join(quiet), "notes.loaded")


def test_a_short_run_says_why_it_has_no_throughput():
    short = result(5.0, gpus=2) | {"images_per_s": None, "step_s": None}
    assert says(
        "\n".join(lines_of([result(10.0), short])),
        "table.no-rate",
        key="warmup_steps",
        figure="images/s",
    )
    assert not says("\n".join(lines_of([result(10.0), result(9.0, status="oom")])), "table.no-rate")


def test_units_suit_their_figures():
    counts = (None, 0, 999, 1000, 999_999, 5.432e9, 2e13)
    assert [*map(text_table.in_bytes, counts)] == [
        "-",
        "0 B",
        "999 B",
        "1 kB",
        "1 MB",
        "5.43 GB",
        "20 TB",
    ]
    joules = (3.0, 0.0, 4321.0, 2.5e6, 1.2345e9)
    assert [*map(text_table.in_joules, joules)] == ["3 J", "0 J", "4.32 kJ", "2.5 MJ", "1.23 GJ"]


def test_the_last_line_says_where_the_records_are(capsys: pytest.CaptureFixture[str]):
    runs = [records.as_run(result(total_s)) for total_s in (1.0, 2.0)]
    table.show(runs[:1])
    table.show(runs)
    found = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Records: ")]
    assert found == ["Records: multirun/x/1.0/", "Records: multirun/x/"]


HEADINGS = ["name", "total s", "commit"]
LONG = [["a" * 40, "1,234", "b " * 20], ["界" * 30, "-", "x"]]


def test_columns_of_figures_are_aligned_to_the_right():
    rows = [
        ["fp16", "1,234.5", "98.10% ± 0.20", "1.67 (83%)", "-"],
        ["fp64", "-", "97.00%", "", "5 GB"],
    ]
    assert text_table.text(["precision", "s", "accuracy", "x", "memory"], rows) == [
        "precision        s       accuracy           x  memory",
        "fp16       1,234.5  98.10% ± 0.20  1.67 (83%)       -",
        "fp64             -         97.00%                5 GB",
    ]
    assert text_table.alignment(["status", "dash"], [["2 ok, 1 failed", "-"]]) == "lr"
    assert text_table.text(["a", "b"], []) == ["a  b"]


@pytest.mark.parametrize("wrap", [False, True])
def test_a_table_keeps_to_the_width_and_changes_no_figure(wrap: bool):
    total, *lines = text_table.text(HEADINGS, LONG, 40, wrap=wrap)
    assert all(cell_len(line) <= 40 for line in (total, *lines))
    # above "1,234"
    assert (total.split(), lines[0].split()) == (["name", "total", "commit"], ["s"])
    assert "1,234" in lines[1]
    assert ("…" in lines[1] and "…" in lines[2]) != wrap
    letters = "".join(lines[1:])
    assert not wrap or (letters.count("a"), letters.count("b"), letters.count("界")) == (40, 20, 30)


def test_nothing_is_cut_without_a_width_or_below_the_least_width():
    assert text_table.text(HEADINGS, LONG)[1].split() == [LONG[0][0], "1,234", *["b"] * 20]
    name = f"{'a' * 11}…"
    assert text_table.text(HEADINGS, LONG, 10, least_width=12) == [
        *("name          total", "                  s", f"{name}  1,234", f"{'界' * 5} …      -"),
        *("", "name          commit", f"{name}  b b b b b b…", f"{'界' * 5} …  x"),
    ]


def test_columns_that_do_not_fit_go_on_below_beside_the_first():
    headings = ["job", *(f"figure {place}" for place in range(9))]
    rows = [[f"job {row}", *(f"{1000 * row + place:,}" for place in range(9))] for row in (1, 2)]
    for width in (20, 33, 50):
        lines = text_table.text(headings, rows, width)
        assert max(map(cell_len, lines)) <= width
        parts = [part.split("\n") for part in "\n".join(lines).split("\n\n")]
        assert len(parts) > 1 and all(lines[-2].startswith("job 1") for lines in parts)
        assert [cell for part in parts for cell in part[-1].split()[2:]] == rows[1][1:]
    times = [["0:01:00", "0:01:00 to 0:12:00", "0:01:00 ago"]]
    assert text_table.alignment(["a", "b", "c"], times) == "rrr"


def test_what_goes_on_below_names_its_rows_as_far_as_there_is_room():
    headings = ["precision", "gpus", *(f"figure {place}" for place in range(6))]
    settings = [("fp32", "1"), ("fp32", "2"), ("half", "1"), ("half", "2")]
    rows = [[*setting, *(f"{place}.5" for place in range(6))] for setting in settings]
    for width, names in ((50, 2), (20, 1)):
        *_, last = "\n".join(text_table.text(headings, rows, width)).split("\n\n")
        named = [tuple(line.split()[:names]) for line in last.split("\n")[-4:]]
        assert named == [setting[:names] for setting in settings]
    alike = [["a", "b", *row[2:]] for row in rows]
    assert text_table.text(headings, alike, 50)[-1].split()[:2] == ["a", "4.5"]


def test_cells_of_several_lines_and_blank_rows():
    assert text_table.text(["figure"], [["gains 0.75 x"]], 11, wrap=True)[1:] == ["gains", "0.75 x"]
    lines = text_table.text(["claim", "figures"], [["one", "1 s\n2 s"], ["", ""], ["  two", "3 s"]])
    assert lines == ["claim  figures", "one    1 s", "       2 s", "", "  two  3 s"]


def test_text_of_a_run_drives_no_terminal_and_is_no_markup():
    name = "[red]x\x1b[2J\u202e|*&_"
    for content in (
        "\n".join(text_table.text(["n"], [[name]])),
        text_table.TextTable(["n"], [[name]]).markdown(),
    ):
        assert "\x1b" not in content and "\u202e" not in content
    assert text_table.text(["n"], [[name]])[1] == "[red]x�[2J�|*&_"
    assert text_table.clean("one\ntwo\x1b") == "one two�"
    assert r"\[red\]x�\[2J�\|\*\&\_" in text_table.TextTable(["n"], [[name]]).markdown()


def test_markdown_latex_and_csv():
    headings, rows = ["name", "s"], [["a_b\nc", "1.0 ± 0.2"]]
    assert [
        line.replace(" ", "")
        for line in text_table.TextTable(headings, rows).markdown().split("\n")
    ] == [
        "|name|s|",
        "|:----------|----------:|",
        r"|a\_b<br>c|1.0±0.2|",
    ]
    latex = text_table.TextTable(headings, [["x_y", "1.0 ± 0.2"]]).latex()
    assert r"\begin{tabular}{lr}" in latex and r"x\_y" in latex and r"1.0 $\pm$ 0.2 \\" in latex
    assert text_table.escape_latex("use `a_b=1`") == r"use \texttt{a\_b=1}"
    assert text_table.escape_latex("a_b ÷ ~") == r"a\_b $\div$ \textasciitilde{}"
    assert (
        text_table.to_csv(headings, [["a,b", 1.23456789], [None, True]])
        == 'name,s\n"a,b",1.23456789\n,True\n'
    )


def test_the_work_of_a_table_grows_no_faster_than_its_rows():
    rows = [
        [f"run {i}", "ok", f"{i * 3.7:.1f}", "12.3 MB", "node1, 界" * 4] * 3 for i in range(2000)
    ]
    headings = [f"heading {i}" for i in range(15)]
    few, many = (
        calls_of(lambda count=count: text_table.text(headings, rows[:count], 120))
        for count in (500, 2000)
    )
    assert many < 5 * few


def on_cpu(own: dict[str, Any] | None = None, **changes: Any) -> Any:
    """A training run on CPU ranks: `changes` of its configuration, or of its record;
    `own` keys of its record alone.
    """
    return records.as_record(records.vision("cpu", **changes) | (own or {}))


def test_a_reference_differs_on_its_axis_alone():
    one, two = on_cpu(), on_cpu(gpus=2)
    assert comparable.reference(two, [two, one], gpus=1) is one
    assert comparable.reference(one, [two, one], gpus=1) is one
    # the name measures nothing
    assert comparable.reference(two, [two, on_cpu(gpus=1, name="y")], gpus=1) is not None
    for other in (
        on_cpu(lr=0.1),
        on_cpu(dataset__train_limit=5),
        on_cpu(precision__name="fp64"),
        on_cpu(hardware="H200"),
        on_cpu(commit="def"),
        on_cpu(dirty=True),
        on_cpu(status="failed"),
    ):
        assert comparable.reference(two, [two, other], gpus=1) is None
    fp64 = on_cpu(precision={"name": "fp64", "extra": 1})  # an option counts with all its keys
    assert comparable.reference(on_cpu(), [fp64], precision="fp64") is fp64


def test_what_differs_beside_the_axes_is_shown():
    assert comparable.varied([on_cpu(), on_cpu()], ("gpus",)) == ["gpus"]
    assert comparable.varied([on_cpu(), on_cpu(precision__name="fp64")], ("gpus",)) == [
        "precision",
        "gpus",
    ]
    limited = [on_cpu(), on_cpu(dataset__train_limit=5)]
    assert comparable.varied(limited, ("gpus",)) == ["gpus", "dataset.train_limit"]
    assert [comparable.cell(r, "dataset.train_limit") for r in limited] == ["null", "5"]
    other_set = on_cpu(
        dataset={"name": "mnist", "train_limit": None, "mean": [0.2], "root": "x", "image_size": 32}
    )
    # and not all that comes with it
    assert comparable.varied([on_cpu(), other_set], ()) == ["dataset"]
    refused = on_cpu(status="refused")
    refused.config = {}
    assert comparable.varied([refused, on_cpu(gpus=2)], ()) == ["gpus"]
    assert comparable.cell(refused, "lr") == "-" and comparable.cell(refused, "gpus") == "1"


def test_what_follows_from_another_axis_is_not_shown():
    single, distributed, forced = (
        records.as_record(records.llm("cpu", recipe=recipe, gpus=gpus))
        for recipe, gpus in (("auto", 1), ("auto", 2), ("distributed", 1))
    )
    assert comparable.varied([single, distributed], ()) == ["gpus"]
    assert comparable.varied([single, forced], ()) == ["recipe"]


STEPS_S = {  # seconds of steps, in epochs of so many, and those in which a process was stopped
    "one stopped": ([0.1] * 199 + [60.1], 200, [199]),
    "two stopped": ([60.1] + [0.1] * 197 + [60.1] * 2, 200, [198, 199]),
    "of few": ([1.0, 1.0, 1.0, 61.0], 4, [3]),
    "every tenth waits": (([0.1] * 9 + [12.0]) * 20, 200, []),
    "first of an epoch": ([0.1] * 100 + [60.1] + [0.1] * 99, 100, []),
    "short": ([0.1] * 199 + [9.0], 200, []),
    "long steps": ([10.0] * 99 + [150.0], 100, []),
    "none": ([], 1, []),
}


@pytest.mark.parametrize("case", STEPS_S)
def test_a_run_with_a_step_that_was_stopped_is_marked_and_the_step_left_out(case: str):
    samples_s, per_epoch, stopped = STEPS_S[case]
    stalls = formulas.flag_stalled_steps(np.array(samples_s), per_epoch)
    statistics = formulas.statistics(samples_s, 0, stalls)
    run = on_cpu({"step_s": statistics})
    assert np.flatnonzero(stalls).tolist() == stopped
    assert (limits.STALLED.sign in limits.brief_signs(run)) is bool(stopped)
    assert run.steps.taken == len(samples_s) and statistics["stalled_count"] == len(stopped)
    assert (
        not stopped
        or statistics["mean"] == pytest.approx(statistics["median"], rel=1e-9)
        or case == "two stopped"
    )


def in_segments(*steps: int) -> Any:
    return on_cpu({"segments": [{"steps": count} for count in steps]})


def tuned(cut: int, left_out: int) -> Any:
    return records.as_record(
        records.llm("cpu") | {"text_rows": {"read": 40, "cut": cut, "left_out": left_out}}
    )


def read_in(mode: str) -> Any:
    return on_cpu({"input": {"loader": "device", "train": {"mode": mode}}})


SKIPPED = {"decoded": {"train": {"skipped": 2}, "test": {"skipped": 1}}}
SHARED = {"disturbed_by": [{"name": "solve", "pid": 7}, {"name": None, "pid": 8}]}


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([on_cpu(), on_cpu(gpus=2)], []),
        (
            [on_cpu(), on_cpu(commit="def", dirty=True, hardware="H200")],
            [
                Told(
                    "notes.several",
                    facts={"what": "commits", "found": ["8fdd49003", "def+changes"]},
                ),
                Told("notes.several", facts={"what": "machines", "found": ["AMD EPYC", "H200"]}),
            ],
        ),
        (
            [in_segments(9), in_segments(4, 5)],
            [Told("notes.mark", facts={"sign": "", "mark": "restarted", "runs": 1})],
        ),
        (
            [read_in("resident"), read_in("streamed"), on_cpu()],
            [Told("notes.streamed", "dataset.device_budget_bytes", {"runs": 1})],
        ),
        ([on_cpu({"input": SKIPPED})], [Told("notes.broken-images", facts={"images": 3})]),
        ([on_cpu({"gpu": {"disturbed_by": []}}), on_cpu({"gpu": None}), tuned(0, 0)], []),
        (
            [tuned(12, 3), tuned(0, 0)],
            [Told("notes.cut-rows", "max_seq_len", {"cut": 12, "read": 40, "left_out": 3})],
        ),
        (
            [on_cpu(), *[on_cpu({"gpu": SHARED})] * 2],
            [Told("notes.disturbed", facts={"runs": 2, "names": ["8", "solve"]})],
        ),
    ],
)
def test_notes_say_what_a_table_cannot(runs: list[Any], said: list[Told]):
    assert told("\n".join(comparable.notes(runs))) == said


def test_repetitions_of_a_script_that_trained_other_amounts_have_no_mean():
    """As those of one that goes on from what its first run left."""
    made = list[dict[str, Any]]()
    for number, (samples, total_s) in enumerate([(6144, 30.0), (2048, 11.0), (2050, 13.0)], 1):
        record = records.script(total_s=total_s, repetition=number, steps=None)
        record["epochs"] = [record["epochs"][0] | {"samples": samples}]
        made.append(record)
    header, first, second, *notes = lines_of(made)
    assert header.split()[:3] == ["n", "total", "s"]
    assert first.split()[:2] == ["-", "30.0"]
    assert second.split()[:4] == ["2", "12.0", "±", "1.4"]
    facts = find("\n".join(notes), "amounts.unequal-repetitions").facts
    assert facts == {"unit": "samples", "least": 2048, "most": 6144}
    equal = lines_of(made[1:])
    assert not says("\n".join(equal), "amounts.unequal-repetitions") and len(equal) < 5
