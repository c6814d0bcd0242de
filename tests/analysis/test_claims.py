"""Every claim on records of a world in which it holds, does not hold, and is undecided."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from analysis import experiments
from analysis.__main__ import main
from analysis.claims import CLAIMS, Verdict, judge, named, render
from analysis.claims.rules import UNITS, UnitName
from analysis.runs import load
from analysis.stats.between_runs import REMEDY
from tests.conftest import calls_of
from tests.helpers import records
from tests.helpers.claim_worlds import CASES, ending, iterations, run, waves, write, write_repeated

STATES = {"holds": "holds", "fails": "does not hold", "undecided": "undecided"}


def judged(folder: Path, *names: str, mix: bool = False) -> list[Verdict]:
    return judge(load.read([folder]).runs, mix, named(names))


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", [claim.name for claim in CLAIMS])
def test_a_claim_is_judged_by_what_was_measured(name: str, state: str, tmp_path: Path):
    case, (claim,) = CASES[name], named([name])
    write(tmp_path, claim.experiment, lambda cell: case.world(cell, getattr(case, state)))
    (verdict,) = judged(tmp_path, name)
    assert verdict.verdict == STATES[state], verdict.why
    assert verdict.n >= 1 and verdict.figures and verdict.command is None and verdict.why
    assert all(figure.low is None or figure.low <= figure.estimate <= figure.high for figure in verdict.figures)


def test_what_was_not_measured_has_its_command(tmp_path: Path):
    records.write(tmp_path / "a", records.vision(precision="bf16", layout="nhwc"))
    for verdict in judged(tmp_path, *(claim.name for claim in CLAIMS)):
        assert (verdict.verdict, verdict.n, verdict.figures) == ("not measured", 0, ())
        experiment = verdict.claim.experiment
        entry = "train_vision" if experiments.load(experiment).kind == "vision" else "tune_llm"
        assert verdict.command == f"python {entry}.py experiment={experiment} name={experiment}"


def table2(folder: Path, x: float = 2.5, **changes: Any) -> None:
    write(folder, "table2", lambda cell: CASES["fp16-over-fp64"].world(cell, x), **changes)


def test_every_claim_says_where_it_is_from_and_what_tests_it():
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS) == len(CASES)
    for claim in CLAIMS:
        assert claim.test and claim.says and claim.section
    third = [claim.name for claim in CLAIMS if not claim.places]
    assert third == ["up-to-47-percent-time", "up-to-39-percent-memory", "up-to-52-percent-traffic"]


def test_a_figure_is_the_ratio_of_its_cells_and_intervals_widen_with_their_number(tmp_path: Path):
    table2(tmp_path)
    (verdict,) = judged(tmp_path, "fp16-over-fp64")
    assert (verdict.asked, verdict.n, verdict.marks, verdict.of_gpus) == (4, 8, "", True)
    assert [figure.where for figure in verdict.figures] == [f"gpus={gpus}" for gpus in (1, 2, 3, 4)]
    for figure in verdict.figures:
        assert (figure.unit, figure.over, figure.basis, figure.runs) == ("% faster", 94.0, "1 run", 2)
        assert figure.estimate == pytest.approx(150.0) and figure.confidence == pytest.approx(1 - 0.05 / 4)
        assert figure.text == f"faster by 150.0 % ({figure.low:.1f} to {figure.high:.1f})"
    alone = [run for run in load.read([tmp_path]).runs if run["gpus"] == 1]  # those that were repeated are of one too
    (single,) = judge(alone, claims=named(["fp16-over-fp64"]))
    assert single.figures[0].confidence == pytest.approx(0.95) and single.verdict == "holds"
    assert single.asked == 4 and single.why == "1 of 4 comparisons"
    ours, all_four = single.figures[0], verdict.figures[0]
    assert ours.low is not None and all_four.low is not None and all_four.low < ours.low < 150


def test_one_cell_that_refutes_a_claim_is_named(tmp_path: Path):
    world = CASES["fp16-over-fp64"].world
    write(tmp_path, "table2", lambda cell: world(cell, 1.5 if cell["gpus"] == 3 else 2.5))
    (verdict,) = judged(tmp_path, "fp16-over-fp64")
    assert verdict.verdict == "does not hold" and verdict.why.startswith("refuted by gpus=3;")


def test_settings_are_judged_apart_and_the_most_telling_decides(tmp_path: Path):
    smoke = {"scale": "smoke", "device": "cpu", "dataset": "digits", "started_at": "2027-01-01T00:00:00Z"}
    table2(tmp_path / "smoke", 1.5, **smoke)
    (small,) = judged(tmp_path, "fp16-over-fp64")
    assert (small.verdict, small.marks, small.of_gpus) == ("does not hold", "cs", False)
    assert small.unlike == ("dataset=mnist",)
    said = render.summary([small])
    assert said[0] == "1 claim: 0 hold, 1 does not hold, 0 undecided, 0 not measured"
    assert "neither confirm nor refute the papers" in said[1]
    table2(tmp_path / "full")
    table2(tmp_path / "later", 1.8, commit="f" * 40, started_at="2026-12-01T00:00:00Z")
    (verdict,) = judged(tmp_path, "fp16-over-fp64")
    assert verdict.verdict == "does not hold" and "ffffffff" in verdict.setting and verdict.of_gpus and verdict.n == 8
    assert [(other.verdict, other.marks) for other in verdict.others] == [("holds", ""), ("does not hold", "cs")]
    assert "commit=8fdd49003" in verdict.others[0].apart
    (mixed,) = judged(tmp_path, "fp16-over-fp64", mix=True)
    assert mixed.n == 16 and len(mixed.others) == 1 and mixed.figures[0].runs == 4


def test_a_cell_that_failed_is_named_and_no_figure(tmp_path: Path):
    world = CASES["qat-memory"].world
    write(
        tmp_path, "peak_memory", lambda cell: world(cell, 1.5) | ending(cell, {1: "oom", 2: "oom", 3: "oom", 4: "ok"})
    )
    memory, needs = judged(tmp_path, "qat-memory", "qat-needs-4-gpus")
    assert memory.verdict == needs.verdict == "holds" and memory.asked == 33 and len(memory.figures) == 9
    assert "9 of 33 comparisons; not ok: method=qat template=instruct gpus=1 oom, method=qat" in memory.why
    assert "9 of 33 comparisons; 9 cells did not end ok" in " ".join(" ".join(render.table([memory], 200)).split())
    assert [figure.text for figure in needs.figures] == ["oom", "oom", "oom", "ok"]
    some = [run for run in load.read([tmp_path]).runs if run["gpus"] != 4]
    assert judge(some, claims=named(["qat-needs-4-gpus"]))[0].verdict == "undecided"


def test_a_claim_of_two_parts_needs_both(tmp_path: Path):
    write(tmp_path, "datasets", lambda cell: iterations(cell, 1.0))
    few = [run for run in load.read([tmp_path]).runs if run["gpus"] <= 2]
    (verdict,) = judge(few, claims=named(["iteration-by-gpus"]))
    assert {figure.verdict for figure in verdict.figures} == {"holds"} and verdict.verdict == "undecided"
    assert "4 of 12 comparisons" in verdict.why


def test_memory_of_cpu_ranks_is_not_exact(tmp_path: Path):
    case = CASES["lora-memory"]
    for device, seeds in (("cpu", 0), ("cpu", 10), ("cuda", 0)):
        folder = tmp_path / f"{device}{seeds}"
        write(folder, "peak_memory", lambda cell: case.world(cell, case.holds), seeds, device=device)
    alone, repeated, exact = (judged(tmp_path / name, "lora-memory")[0] for name in ("cpu0", "cpu10", "cuda0"))
    assert alone.verdict == "undecided" and "without repetitions; repeat=3 " in alone.why
    assert alone.figures[0].text == "1.50 x" and alone.figures[0].low is None
    assert repeated.verdict == exact.verdict == "holds" and repeated.figures[0].low < 1.5 == exact.figures[0].low


@pytest.mark.parametrize(
    "name", ["fp16-over-fp64", "precision-accuracy", "pinned-tuning", "pinned-copies", "loss-alike"]
)
def test_single_runs_of_a_machine_without_repetitions_are_undecided(name: str, tmp_path: Path):
    (claim,), case = named([name]), CASES[name]
    write(tmp_path, claim.experiment, lambda cell: case.world(cell, case.holds), seeds=0)
    (verdict,) = judged(tmp_path, name)
    assert verdict.verdict == "undecided" and REMEDY in verdict.why
    assert all(figure.low is None and figure.estimate is not None for figure in verdict.figures)


def test_seeds_are_averaged_and_narrow_the_interval(tmp_path: Path):
    world = CASES["pinned-tuning"].world
    for seed in range(8):
        write(tmp_path / str(seed), "table5", lambda cell: world(cell, 1.0 + 0.001 * seed), 0, seed=seed)  # noqa: B023
    runs = load.read([tmp_path]).runs
    (few,) = judge([run for run in runs if run["seed"] < 3], claims=named(["pinned-tuning"]))
    (many,) = judge(runs, claims=named(["pinned-tuning"]))
    assert few.verdict == many.verdict == "holds" and (few.n, many.n) == (24, 64)
    assert (few.figures[0].basis, many.figures[0].basis) == ("3 runs", "8 runs")
    assert few.figures[0].low < many.figures[0].low < 1.0


def test_time_has_the_evaluations_however_few_epochs_there_are(tmp_path: Path):
    """Training takes a tenth, the evaluation as long as before: 100 s of training and 10 s, and 10 s and 10 s."""
    write_repeated(tmp_path, "table2")
    for precision, trained_s in (("fp64", 100.0), ("fp16", 10.0)):
        record = records.vision(precision=precision, dataset="mnist", epochs=2, total_s=trained_s + 10.0)
        records.write(tmp_path / precision, record, records.steps(trained_s / 100 * waves(101)))
    (verdict,) = judged(tmp_path, "fp16-over-fp64")
    assert verdict.figures[0].estimate == pytest.approx(100 * (110 / 20 - 1))


def test_a_run_shorter_than_the_warm_up_is_said(tmp_path: Path):
    write(tmp_path, "table5", lambda _: {})
    for path in tmp_path.glob("table5-[0-9]*/result.json"):
        record = json.loads(path.read_text())
        record["iteration_s"] |= {"mean": None, "count": 0}
        path.write_text(json.dumps(record))
    (verdict,) = judged(tmp_path, "pinned-tuning")
    assert verdict.verdict == "not measured" and "no more steps than the warm-up leaves out" in verdict.why


@pytest.mark.parametrize(("lost", "expected"), [(None, "does not hold"), (0.0, "not measured")])
def test_a_loss_that_became_no_number_is_not_alike(lost: float | None, expected: str, tmp_path: Path):
    write_repeated(tmp_path, "table2")
    for precision, pinned in (("fp32", True), ("fp32", False), ("fp16", True)):
        cell = {"precision": precision, "pin_memory": pinned, "dataset": "mnist", "gpus": 1}
        record, _ = run("vision", cell, {}, 0, {})
        if precision == "fp16":
            record["epochs"][-1]["train_loss"] = lost
        records.write(tmp_path / f"{precision}{pinned}", record)
    (verdict,) = judged(tmp_path, "loss-alike")
    assert [figure.verdict for figure in verdict.figures] == [expected, "holds"]
    assert verdict.verdict == ("does not hold" if lost is None else "undecided")  # the other part was not measured


@pytest.mark.parametrize("content", [None, {"error": "no events"}, {"source": "kineto"}])
def test_a_profile_that_is_absent_or_broken_is_said(content: Any, tmp_path: Path):
    write(tmp_path, "vision_metrics", lambda _: {})
    for path in tmp_path.glob("*/result.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"profile": content}))
    (verdict,) = judged(tmp_path, "pinned-copies")
    assert verdict.verdict == "not measured" and "profile" in verdict.why


def test_records_with_odd_epochs_or_steps_do_not_end_the_rest(tmp_path: Path):
    table2(tmp_path)
    for path in tmp_path.glob("*/result.json"):
        record = json.loads(path.read_text())
        record["epochs"] = [epoch | {"ended_s": None, "train_loss": -1.0} for epoch in record["epochs"]]
        record["step_s"] = None
        path.write_text(json.dumps(record))
    verdicts = judged(tmp_path, *(claim.name for claim in CLAIMS))
    assert {verdict.verdict for verdict in verdicts if verdict.claim.name == "precision-volume"} == {"does not hold"}
    of_name = {verdict.claim.name: verdict for verdict in verdicts}
    assert of_name["loss-alike"].verdict == "not measured" and of_name["fp16-over-fp64"].verdict == "holds"


EVIL = "[red]x[/red]\x1b[2J<script>alert(1)</script>|a|\n# b\u202e"


def test_text_of_a_run_drives_neither_terminal_nor_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    table2(tmp_path / "runs", hardware=EVIL, model__name=EVIL)
    files = [tmp_path / "c.md", tmp_path / "c.json"]
    words = ["claims", str(tmp_path / "runs"), "--markdown", str(files[0]), "--json", str(files[1])]
    assert main(words) == main([*words, "--only", "fp16-over-fp64"]) == 0
    printed = capsys.readouterr().out
    assert "[red]x[/red]" in printed and "<script>" in printed
    assert "\x1b" not in printed and "\u202e" not in printed
    document = files[0].read_text()
    assert "<script>" not in document and "\\<script\\>" in document and "\x1b" not in document
    assert not any(line.startswith("# b") for line in document.splitlines())
    rows = [line for line in document.splitlines() if line.startswith("| fp16")]
    assert len(rows) == 1 and rows[0].replace("\\|", "").count("|") == 7


def test_the_table_has_claims_figures_counts_marks_and_each_command_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    table2(tmp_path / "runs", device="cpu")
    (tmp_path / "runs" / "cut").mkdir()
    (tmp_path / "runs" / "cut" / "result.json").write_text("{")
    json_file = tmp_path / "c.json"
    assert main(["claims", str(tmp_path / "runs"), "--json", str(json_file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:-1])) <= 120  # the last names a folder
    text = " ".join(" ".join(lines).split())
    assert f"{len(CLAIMS)} claims: " in text
    assert "c CPU ranks, not GPUs" in text and "n=8" in text
    assert "of those measured are of CPU ranks" in text
    assert "decided here as on GPUs, since what they compare is counted: precision-volume" in text
    commands = [line.strip() for line in lines if line.startswith("  python ")]
    assert len(commands) == len(set(commands)) > 10
    assert "python train_vision.py experiment=table3 name=table3" in commands
    content = json.loads(json_file.read_text())
    assert len(content["claims"]) == len(CLAIMS) and "cut" in content["skipped"][0]["folder"]
    counts = Counter(claim["verdict"] for claim in content["claims"])
    assert counts["not measured"] > 50 and f"{counts['not measured']} not measured" in text
    (first,) = (claim for claim in content["claims"] if claim["name"] == "fp16-over-fp64")
    assert (first["verdict"], first["of_gpus"]) == ("holds", False)
    assert first["figures"][0]["estimate"] == pytest.approx(150.0) and first["figures"][0]["under"] is None


def test_a_claim_at_length_has_its_rule_and_every_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    table2(tmp_path)
    assert main(["claims", str(tmp_path), "--only", "precision-accuracy,pinned-gain"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("precision-accuracy: holds\n") and "pinned-gain: not measured\n" in printed
    assert "holds if  accuracy in fp32 and in fp16 is less than 1 point below that in fp64" in printed
    assert printed.count("points (") == 8 and "python train_vision.py experiment=table3" in printed


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--only", "fp16-over-fp6"],
            "no claim fp16-over-fp6 (did you mean fp16-over-fp64?); there are ddp-ds-scales, ",
        ),
        (["--only", ""], "--only: '' has an empty name"),
        (["--markdown", "c.md", "--only"], "expected one argument"),
    ],
)
def test_what_cannot_be_done_is_refused_in_a_line(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    records.write(tmp_path / "a", records.vision())
    try:
        code = main(["claims", str(tmp_path), *words])
    except SystemExit as ended:
        code = ended.code
    error = capsys.readouterr().err
    assert code == 1 and error.count("\n") == 1 and error.startswith("refused: ") and says in error


def test_no_runs_and_no_place_to_write_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["claims", str(tmp_path)]) == 1 and "no run under" in capsys.readouterr().err
    records.write(tmp_path / "a", records.vision())
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit):
        main(["claims", str(tmp_path), "--json", str(tmp_path / "file" / "c.json")])
    assert capsys.readouterr().err.startswith("refused: ")


def test_the_work_of_judging_grows_no_faster_than_the_runs(tmp_path: Path):
    text = json.dumps(records.vision(dataset="mnist"))
    for index in range(480):
        record = text.replace('"gpus": 1', f'"gpus": {1 + index % 4}').replace('"seed": 0', f'"seed": {index // 12}')
        folder = tmp_path / str(index)
        folder.mkdir()
        precision = ("fp64", "fp32", "fp16")[index // 4 % 3]
        (folder / "result.json").write_text(record.replace('"fp32"', f'"{precision}"'))
    runs = load.read([tmp_path]).runs
    assert sum(verdict.n for verdict in judge(runs)) > 480
    few, many = (calls_of(lambda part=part: judge(part)) for part in (runs[:120], runs))
    assert many < 5 * few


@pytest.mark.parametrize(
    ("unit", "figures", "text"),
    [
        ("faster", (25.0, 20.0, 30.0), "faster by 25.0 % (20.0 to 30.0)"),
        ("faster", (-20.0, None, None), "slower by 25.0 %"),
        ("faster", (-50.0, -60.0, -20.0), "slower by 100.0 % (25.0 to 150.0)"),
        ("faster", (-20.0, -50.0, 10.0), "slower by 25.0 % (slower by 100.0 % to faster by 10.0 %)"),
        ("faster", (-20.0, -100.0, 10.0), "slower by 25.0 % (slower by inf % to faster by 10.0 %)"),
        ("less", (-60.0, -60.0, -60.0), "more by 60.0 %"),
        ("less", (5.0, -2.0, 12.0), "less by 5.0 % (more by 2.0 % to less by 12.0 %)"),
        ("points", (-1.5, -2.0, -1.0), "-1.50 points (-2.00 to -1.00)"),
    ],
)
def test_no_figure_is_faster_by_less_than_nothing(unit: UnitName, figures: tuple[float, ...], text: str):
    assert UNITS[unit].phrase(*figures) == text
