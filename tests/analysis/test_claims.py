"""Every claim on records of a world in which it holds, does not hold, and is undecided."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from analysis import experiments
from analysis.__main__ import main
from analysis.claims import CLAIMS, ClaimVerdict, judge, measures, named, render
from analysis.claims.comparison import UNITS, Readings, UnitName
from analysis.runs import grouping, load
from analysis.runs.load import Run
from analysis.stats import intervals
from tests.conftest import calls_of
from tests.helpers import claim_runs, records
from tests.helpers.claim_runs import REPEATED_LR, write
from tests.helpers.claim_worlds import CASES, Cell, Figures, ending
from tests.helpers.fooling_worlds import FOOLING, OTHER_WORLDS, SPOILED
from tests.helpers.messages import Told, find, says, told

STATES = {"holds": "holds", "fails": "does not hold", "undecided": "undecided"}


def runs_of(folder: Path) -> list[Run]:
    return load.read_runs([folder]).runs


def judged(folder: Path, *names: str, mix: bool = False) -> list[ClaimVerdict]:
    return judge(runs_of(folder), mix, named(names))


# A claim of each kind. `make test` tries these in all worlds; `make test-all` tries all claims.
OF_EACH_KIND = {
    (experiments.load_experiment(one.experiment).kind, one.needs, one.counted): one.name
    for one in CLAIMS
}.values()


def slow_unless(is_quick: bool) -> list[pytest.MarkDecorator]:
    return [] if is_quick else [pytest.mark.slow]


def table2(folder: Path, x: float = 2.5, **changes: Any) -> None:
    write(folder, "table2", *CASES["fp16-over-fp64"].at(x), **changes)


@pytest.mark.parametrize(
    ("name", "state"),
    [
        pytest.param(
            one.name, state, marks=slow_unless(state == "fails" or one.name in OF_EACH_KIND)
        )
        for one, state in product(CLAIMS, STATES)
    ],
)
def test_a_claim_is_judged_by_what_was_measured(name: str, state: str, tmp_path: Path):
    case, (claim,) = CASES[name], named([name])
    write(tmp_path, claim.experiment, *case.at(getattr(case, state)))
    (verdict,) = judged(tmp_path, name)
    assert verdict.verdict == STATES[state], verdict.why
    assert verdict.n >= 1 and verdict.figures and verdict.command is None and verdict.why
    assert all(
        figure.low is None or figure.low <= figure.estimate <= figure.high
        for figure in verdict.figures
    )


@pytest.mark.parametrize(
    "name",
    [pytest.param(one.name, marks=slow_unless(one.name in OF_EACH_KIND)) for one in CLAIMS],
)
def test_runs_of_other_worlds_decide_no_claim(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In a world in which a claim holds, newer runs for which it fails change nothing; alone, they
    only illustrate it, as do runs of several drivers or torches together. Without the runs of a
    cell that it reads, it is half measured; where nothing was repeated, nothing timed holds.
    """
    case, (claim,) = CASES[name], named([name])
    for state in ("holds", "fails"):
        write(tmp_path / state, claim.experiment, *case.at(getattr(case, state)))
    hold, fail = runs_of(tmp_path / "holds"), runs_of(tmp_path / "fails")
    experiment = experiments.load_experiment(claim.experiment)
    (base,) = judge(hold, claims=[claim])
    repeated = [run for run in fail if run["lr"] == REPEATED_LR]
    (single,) = judge([run for run in hold if run["lr"] != REPEATED_LR], claims=[claim])
    assert single.verdict == "undecided" or all(
        figure.basis in ("exact", "") for figure in single.figures
    )
    for world, columns in {**OTHER_WORLDS, "beyond the cells": None}.items():
        own = columns[experiment.kind == "llm"] if columns else {}
        if any(value in experiment.swept.get(name, ()) for name, value in own.items()):
            continue  # no other world: cells of the claim
        changes = {"started_at": "2027-01-01T00:00:00Z"} | own
        others = [
            records.changed(run, changes | ({} if columns else {"gpus": run["gpus"] + 4}))
            for run in fail
            if run["lr"] != REPEATED_LR
        ]
        (alone,), (both,) = (
            judge(runs, claims=[claim]) for runs in (others + repeated, hold + others)
        )
        assert both.verdict == "holds" and (both.n == base.n or not columns), world
        assert (
            claim.counted and (world != "other loader" or experiment.kind == "llm")
        ) or alone.verdict in (
            "illustrated",
            "not measured",
        ), world
        assert bool(alone.unlike) == bool(alone.n) and (
            alone.command is not None or claim.counted
        ), world
    elsewhere = [replace(run, columns=run.columns | {"hardware": "NVIDIA A10"}) for run in fail]
    hold = [replace(run, columns=run.columns | {"hardware": "NVIDIA H100 NVL"}) for run in hold]
    (both,) = judge(hold + elsewhere, claims=[claim])
    assert (
        both.verdict == "holds"
        and "NVIDIA H100 NVL" in both.setting
        and "NVIDIA A10" in both.others[0].setting
    )
    cells = grouping.group([run for run in hold if run["lr"] != REPEATED_LR], [*experiment.swept])
    for cell in list(cells.values())[:: max(1, len(cells) // 6)]:
        rest = [run for run in hold if run not in cell]
        (fewer,), (few,) = (judge(runs, claims=[claim]) for runs in (rest, [*cell, *hold[-10:]]))
        read = (
            sum(not figure.beyond for figure in fewer.figures) < base.asked and claim.needs == "all"
        )
        assert fewer.verdict in (("half measured", "not measured") if read else ("holds",))
        assert bool(fewer.command) == read
        assert says(fewer.why, "claim.missing") == (fewer.verdict == "half measured")
        assert (
            few.verdict in ("half measured", "not measured")
            or base.asked == 1
            or claim.needs == "one"
        )
    updated = [
        replace(run, columns=run.columns | {"seed": 99}) for run in hold if run["lr"] != REPEATED_LR
    ]
    monkeypatch.setattr(
        Readings, "versions", lambda _, run: "torch 9.9.1" if run["seed"] == 99 else "torch 2.11.0"
    )
    (mixed,) = judge(hold + updated, claims=[claim])
    assert mixed.verdict == ("holds" if claim.counted else "illustrated")
    (apart,) = mixed.unlike
    assert says(apart, "claim.several-versions", versions=["torch 2.11.0", "torch 9.9.1"])


@pytest.mark.parametrize(
    ("name", "world", "verdict"),
    [
        pytest.param(*(*case, "does not hold")[:3], marks=slow_unless(case[0] in OF_EACH_KIND))
        for case in FOOLING
    ],
)
def test_a_world_that_would_fool_a_looser_rule(
    name: str, world: Callable[[dict[str, Any]], dict[str, Any]], verdict: str, tmp_path: Path
):
    write(tmp_path, named([name])[0].experiment, world)
    (judgement,) = judged(tmp_path, name)
    assert judgement.verdict == verdict, judgement.why


@pytest.mark.parametrize(
    ("code", "figures"),
    [
        ("claim.at-chance", {"accuracy": 0.1}),
        ("claim.losses-did-not-fall", {"decay": 1.0}),
        ("claim.losses-not-finite", {"lost": 2}),
        ("claim.other-work", {"trained": 600}),
        ("claim.other-cores", {"cores": 1}),
        ("claim.other-cores", {"threads": 4}),
        ("claim.beside-others", {"beside": 2}),
        ("claim.impossible-time", {"s": 1e-9}),
    ],
)
def test_a_side_that_shows_nothing_leaves_its_comparison_undecided_with_the_reason(
    code: str, figures: Figures, tmp_path: Path
):
    def world(cell: Cell) -> Figures:
        fair = {"s": 1.5} if cell["precision"] == "fp32" else {}
        return fair | (figures if (cell["precision"], cell["gpus"]) == ("fp16", 2) else {})

    write(tmp_path, "table2", world)
    verdicts = judged(tmp_path, "fp16-over-fp32", "precision-memory")
    by_cell = {figure.where: figure for figure in verdicts[0].figures}
    assert verdicts[0].verdict == by_cell["gpus=2"].verdict == "undecided"
    assert says(by_cell["gpus=2"].why, code) and says(
        verdicts[0].why, "claim.undecided-by-condition"
    )
    assert {by_cell[f"gpus={gpus}"].verdict for gpus in (1, 3, 4)} == {"holds"}
    assert not any(figure.doubts for figure in verdicts[1].figures)  # memory is counted
    assert any(code in line for line in render.verdict_table(verdicts, 10_000))


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        # ranks share the cores of a node
        ({1: (16, 16), 2: (16, 8), 3: (16, 5), 4: (16, 4)}, "holds"),
        ({1: (4, 4), 2: (8, 4), 3: (12, 4), 4: (16, 4)}, "holds"),  # each GPU brings its own
        ({1: (16, 1), 2: (16, 8), 3: (16, 5), 4: (16, 4)}, "undecided"),
        ({1: (2, 2), 2: (16, 8), 3: (16, 5), 4: (16, 4)}, "undecided"),
    ],
)
def test_more_gpus_share_the_cores_or_bring_their_own(
    share: dict[int, tuple[int, int]], expected: str, tmp_path: Path
):
    """By the number of GPUs: cores of the node, and threads of a rank."""

    def world(cell: Cell) -> Figures:
        cores, threads = share[cell["gpus"]]
        return CASES["ddp-ds-scales"].world(cell, 1.3) | {"cores": cores, "threads": threads}

    write(tmp_path, "strategies", world)
    (verdict,) = judged(tmp_path, "ddp-ds-scales")
    assert verdict.verdict == expected, verdict.why


def test_a_figure_above_what_is_printed_exceeds_the_claim(tmp_path: Path):
    table2(tmp_path, 9.0)
    (verdict,) = judged(tmp_path, "fp16-over-fp64")
    assert verdict.verdict == "exceeds" and verdict.decides
    assert says(verdict.why, "claim.exceeded", by=[f"gpus={gpus}" for gpus in (1, 2, 3, 4)])
    assert [(figure.verdict, figure.upto) for figure in verdict.figures] == [("exceeds", 172.0)] * 4
    counts = find(render.summary([verdict])[0], "claim.counts").facts["counts"]
    assert (counts["exceeds"], counts["holds"]) == (1, 0)


@pytest.mark.parametrize(("name", "which", "columns", "said"), SPOILED)
def test_a_spoiled_run_decides_nothing_nor_do_the_lucky_ones_of_its_cell(
    name: str, which: Cell, columns: Cell, said: str, tmp_path: Path
):
    write(tmp_path, named([name])[0].experiment, *CASES[name].at([CASES[name].holds] * 3))
    runs = [run for run in runs_of(tmp_path) if run["lr"] != REPEATED_LR]
    spoiled = [run for run in runs if all(run[column] == value for column, value in which.items())]
    others = [run for run in runs_of(tmp_path) if run.folder not in {run.folder for run in spoiled}]
    changed = [records.changed(run, columns) for run in spoiled]
    (judgement,) = judge([*others, *changed], claims=named([name]))
    assert (
        judge([*others, *spoiled], claims=named([name]))[0].verdict == "holds"
        and judgement.in_words == said
    )
    assert said != "half measured" or f"gpus=1 {columns['status']} (1 of 3 runs)" in judgement.why


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpus": [claim_runs.MACHINE["gpus"][0] | {"driver": "999.1"}]}, "driver 999.1"),
        ({"packages": {"torch": "9.9.1"}}, "torch 9.9.1"),
    ],
)
def test_runs_of_several_drivers_or_torches_only_illustrate(
    changes: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    table2(tmp_path / "one")
    monkeypatch.setattr(claim_runs, "MACHINE", claim_runs.MACHINE | changes)
    table2(tmp_path / "other", seed=1)
    (judgement,) = judged(tmp_path, "fp16-over-fp64")
    assert judgement.in_words == "illustrated: holds"
    versions = find(judgement.unlike[-1], "claim.several-versions").facts["versions"]
    assert len(versions) == 2 and any(said in version for version in versions)


@pytest.mark.parametrize(
    ("name", "option", "changed"),
    [
        ("lora-fastest", {"method": "lora"}, {"method.lora_rank": 64}),
        ("qat-slower-than-dpo", {"method": "dpo"}, {"method.lora_alpha": 64.0}),
        ("alpaca-longest", {"dataset": "alpaca_cleaned"}, {"dataset.rows": 100}),
        ("ddp-ds-scales", {"strategy": "ddp_ds"}, {"strategy.bucket_cap_mb": 1.0}),
        ("dali-over-dataloader", {"loader": "torch"}, {"loader.prefetch_factor": 9}),
        ("qlora-pays-with-time", {"gpus": 1}, {"recipe": "lora_finetune_distributed"}),
        ("nsys-costs-little", {"profiled": True}, {"profile.name": "kineto"}),
        # attached, and records after the training
        ("nsys-costs-little", {"profiled": True}, {"profiled": False}),
    ],
)
def test_newer_runs_of_one_option_with_another_setting_change_nothing(
    name: str, option: Cell, changed: Cell, tmp_path: Path
):
    case, (claim,) = CASES[name], named([name])
    for state in ("holds", "fails"):
        write(tmp_path / state, claim.experiment, *case.at(getattr(case, state)))
    hold, fail = runs_of(tmp_path / "holds"), runs_of(tmp_path / "fails")
    newer = [
        replace(run, columns=run.columns | {"started_at": "2027-01-01T00:00:00Z"} | changed)
        for run in fail
        if all(run[column] == value for column, value in option.items())
        and run["lr"] != REPEATED_LR
    ]
    (base,), (both,) = judge(hold, claims=[claim]), judge(hold + newer, claims=[claim])
    assert newer and (both.verdict, both.n, both.unlike) == ("holds", base.n, base.unlike), both.why


def test_a_copied_folder_repeats_nothing_and_is_said(tmp_path: Path):
    table2(tmp_path / "runs", seed=7)
    shutil.copytree(tmp_path / "runs", tmp_path / "runs-backup")
    once, found = load.read_runs([tmp_path / "runs"]), load.read_runs([tmp_path])
    assert len(found.runs) == len(once.runs) == len(found.skipped)
    assert judge(found.runs, claims=named(["fp16-over-fp64"]))[0].n == 8
    first = found.skipped[0]
    assert says(first.why, "runs.copy", original=str(tmp_path / "runs" / first.folder.name))


def test_memory_and_photographs_other_than_the_papers_decide_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    digits = {"dataset": "digits", "scale": "smoke"}
    write(tmp_path / "digits", "loaders", *CASES["dataloader-copies-alike"].at(1.0), **digits)
    (judgement,) = judged(tmp_path / "digits", "dataloader-copies-alike")
    assert judgement.verdict == "not measured" and says(
        judgement.why, "claim.no-photographs", key="dataset"
    )
    size = {"memory_bytes": 24 * 2**30}
    monkeypatch.setattr(
        claim_runs, "MACHINE", records.environment(cpu=size, gpus=[{"uuid": "GPU-1", **size}])
    )
    for name, memory in (("qat-needs-4-gpus", "gpu"), ("dataloader-needs-memory", "host")):
        (claim,) = named([name])
        write(tmp_path / name, claim.experiment, *CASES[name].at(CASES[name].fails))
        (judgement,) = judged(tmp_path / name, name)
        assert judgement.in_words == "illustrated: does not hold"
        assert says(judgement.unlike[0], "claim.other-memory", memory=memory, gib=24)


def test_what_was_not_measured_has_its_command(tmp_path: Path):
    records.write(tmp_path / "a", records.vision(precision="bf16", layout="nhwc"))
    for verdict in judged(tmp_path, *(claim.name for claim in CLAIMS)):
        assert (verdict.verdict, verdict.n, verdict.figures) == ("not measured", 0, ())
        experiment = verdict.claim.experiment
        entry = (
            "train_vision"
            if experiments.load_experiment(experiment).kind == "vision"
            else "tune_llm"
        )
        assert verdict.command == f"python {entry}.py experiment={experiment} name={experiment}"


def test_runs_that_measure_no_claim_get_three_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    records.write(tmp_path / "a", records.script())
    assert main(["claims", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert len(lines) == 3 and says(lines[0], "claim.none-measured", n=len(CLAIMS))
    assert all(says(line, "claim.measured-by") for line in lines[1:])


def test_a_figure_is_the_ratio_of_its_cells_and_intervals_widen_with_their_number(tmp_path: Path):
    table2(tmp_path)
    (verdict,) = judged(tmp_path, "fp16-over-fp64")
    assert (verdict.asked, verdict.n, verdict.marks, verdict.decides) == (4, 8, "", True)
    assert [figure.where for figure in verdict.figures] == [f"gpus={gpus}" for gpus in (1, 2, 3, 4)]
    for figure in verdict.figures:
        assert (figure.unit, figure.over, figure.basis, figure.runs) == (
            "% faster",
            94.0,
            "1 run",
            2,
        )
        assert figure.estimate == pytest.approx(150.0) and figure.confidence == pytest.approx(
            1 - 0.05 / 4
        )
        ends = [f"{figure.low:.1f}", f"{figure.high:.1f}"]
        assert says(
            figure.text, "claim.figure", unit="% faster", number="150.0", opposite=False, ends=ends
        )
    # the repeated ones are among them
    alone = [run for run in runs_of(tmp_path) if run["gpus"] == 1]
    (single,) = judge(alone, claims=named(["fp16-over-fp64"]))
    assert (single.verdict, single.asked, single.command) == (
        "half measured",
        4,
        experiments.load_experiment("table2").command,
    )
    assert told(single.why) == [
        Told("claim.measured", None, {"measured": 1, "asked": 4}),
        Told("claim.missing", None, {"missing": ["gpus=2", "gpus=3", "gpus=4"]}),
    ]
    ours, all_four = single.figures[0], verdict.figures[0]
    assert ours.confidence == pytest.approx(0.95) and all_four.low < ours.low < 150  # pyright: ignore[reportOptionalOperand]


def test_settings_are_judged_apart_and_the_most_telling_decides(tmp_path: Path):
    smoke = {
        "scale": "smoke",
        "device": "cpu",
        "dataset": "digits",
        "started_at": "2027-01-01T00:00:00Z",
    }
    table2(tmp_path / "smoke", 1.5, **smoke)
    (small,) = judged(tmp_path, "fp16-over-fp64")
    assert (small.in_words, small.marks, small.decides) == (
        "illustrated: does not hold",
        "cs",
        False,
    )
    unlike = [told(difference)[0].facts for difference in small.unlike]
    assert [(one["column"], one["values"], one["wanted"], one["printed"]) for one in unlike] == [
        ("scale", "smoke", "full", True),
        ("device", "cpu", "cuda", True),
        ("dataset", "digits", "mnist", True),
    ]
    counts, illustrated = render.summary([small])
    assert find(counts, "claim.counts").facts["counts"] == {
        kind: int(kind == "illustrated") for kind in render.PLURALS
    }
    assert says(illustrated, "claim.illustrated")
    table2(tmp_path / "full")
    table2(tmp_path / "later", 1.8, commit="f" * 40, started_at="2026-12-01T00:00:00Z")
    (verdict,) = judged(tmp_path, "fp16-over-fp64")
    assert (
        verdict.verdict == "does not hold"
        and "ffffffff" in verdict.setting
        and verdict.decides
        and verdict.n == 8
    )
    others = [("holds", ""), ("illustrated: does not hold", "cs")]
    assert [(other.verdict, other.marks) for other in verdict.others] == others
    assert "commit=8fdd49003" in verdict.others[0].apart
    (mixed,) = judged(tmp_path, "fp16-over-fp64", mix=True)
    assert mixed.n == 16 and len(mixed.others) == 1 and mixed.figures[0].runs == 4


def test_the_figures_of_each_rule_are_listed_with_what_they_compare(tmp_path: Path):
    write(tmp_path, named(["time-by-file-size"])[0].experiment, *CASES["time-by-file-size"].at(2.5))
    listed = render.listed(*judged(tmp_path, "time-by-file-size"))
    counted = [one for line in listed[2::3] for one in told(line)]
    assert (
        counted
        == [Told("claim.least-and-greatest", None, {"n": 8, "counts": {"does not hold": 8}})] * 2
    )
    assert [line.partition("template=")[2].split()[0] for line in listed[::3]] == [
        "instruct",
        "summarize",
    ]


def test_a_cell_that_failed_is_named_and_no_figure(tmp_path: Path):
    ends = {1: "oom", 2: "oom", 3: "oom", 4: "ok"}
    write(
        tmp_path,
        "peak_memory",
        lambda cell: CASES["qat-memory"].world(cell, 3.0) | ending(cell, ends),
    )
    memory, needs = judged(tmp_path, "qat-memory", "qat-needs-4-gpus")
    assert memory.verdict == needs.verdict == "holds" and memory.asked == len(memory.figures) == 6
    measured, lost = told(memory.why)
    assert measured == Told("claim.measured", None, {"measured": 6, "asked": 6})
    assert lost.code == "claim.not-ok" and len(lost.facts["cells"]) == 9
    assert lost.facts["cells"][0] == "method=qat template=instruct gpus=1 oom"
    assert [figure.text for figure in needs.figures] == ["oom", "oom", "oom", "ok"]
    some = [run for run in runs_of(tmp_path) if run["gpus"] != 4]
    assert judge(some, claims=named(["qat-needs-4-gpus"]))[0].verdict == "half measured"


def test_one_cell_refutes_a_claim(tmp_path: Path):
    world = CASES["fp16-over-fp64"].world
    write(tmp_path / "one", "table2", lambda cell: world(cell, 1.5 if cell["gpus"] == 3 else 2.5))
    (verdict,) = judged(tmp_path / "one", "fp16-over-fp64")
    assert verdict.verdict == "does not hold" and says(verdict.why, "claim.refuted", by=["gpus=3"])


def test_memory_of_cpu_ranks_is_not_exact(tmp_path: Path):
    case = CASES["lora-memory"]
    for device, repetitions in (("cpu", 0), ("cpu", 10), ("cuda", 0)):
        folder = tmp_path / f"{device}{repetitions}"
        write(folder, "peak_memory", *case.at(case.holds), repetitions=repetitions, device=device)
    alone, repeated, exact = (
        judged(tmp_path / name, "lora-memory")[0] for name in ("cpu0", "cpu10", "cuda0")
    )
    assert (
        alone.shows == "undecided"
        and says(alone.why, "claim.no-interval")
        and says(alone.why, "spread.repeat")
    )
    assert says(alone.figures[0].text, "claim.figure", unit="x", number="1.50", ends=[])
    assert alone.figures[0].low is None
    assert (
        repeated.shows == exact.verdict == "holds"
        and repeated.figures[0].low < 1.5 == exact.figures[0].low
    )


def test_ranks_of_a_run_and_runs_of_a_seed_count_once(tmp_path: Path):
    """Neither shows how another training would have gone: intervals are those of the means."""

    def sides(folder: Path) -> measures.Sides:
        runs = runs_of(folder)
        top, bottom = (
            [run for run in runs if run["pin_memory"] is pinned] for pinned in (True, False)
        )
        return measures.Sides(top, bottom, 0.95, Readings(runs))

    def interval(name: str, repetitions: int, ranks: int, seeds: int = 3) -> intervals.Interval:
        """Of runs of each seed, whose ranks differ by a half, and whose repetitions do not."""
        folder = tmp_path / f"{name}{repetitions}{ranks}{seeds}"
        for pinned, seed, repetition in product(
            (True, False), range(seeds), range(1, repetitions + 1)
        ):
            seconds = (
                [1.0 + 0.1 * seed]
                if ranks == 1
                else [(0.5 + index) * (1.0 + 0.1 * seed) for index in (0, 1)]
            )
            own = {"seed": seed, "repetition": repetition, "gpus": 2, "pin_memory": pinned}
            record = records.vision(**own, test_accuracy=0.97 + 0.01 * seed, test_samples=1000)
            record["profile"] = records.profile([{}] * ranks, seconds)
            records.write(folder / f"{pinned}{seed}{repetition}", record)
        return measures.MEASURES[name].interval(sides(folder))

    one, two = (interval("time_communicating", 1, ranks) for ranks in (1, 2))
    assert [two.low, two.high] == pytest.approx([one.low, one.high])
    once, thrice = (interval("accuracy", repetitions, 1) for repetitions in (1, 3))
    assert once.low is not None and [thrice.low, thrice.high] == pytest.approx(
        [once.low, once.high]
    )
    assert interval("accuracy", 3, 1, seeds=1).low is None


def change(folder: Path, pattern: str, edit: Callable[[dict[str, Any]], None]) -> None:
    """Edit the records of some run folders."""
    for path in folder.glob(f"{pattern}/result.json"):
        record = json.loads(path.read_text())
        edit(record)
        path.write_text(json.dumps(record))


@pytest.mark.parametrize(
    ("name", "lacks", "code", "why"),
    [
        ("precision-volume", {"transfer_bytes": None}, "claim.no-column", "h2d_bytes"),
        ("loss-alike", {"epochs": []}, "claim.no-losses", ""),
        ("pinned-copies", {"profile": None}, "claim.no-profile", ""),
        ("pinned-copies", {"profile": {"error": "no events"}}, "claim.no-profile", "no events"),
        ("pinned-copies", {"profile": {"source": "kineto"}}, "claim.no-profile", ""),
    ],
)
def test_what_a_record_lacks_is_said(
    name: str, lacks: dict[str, Any], code: str, why: str, tmp_path: Path
):
    write(tmp_path, named([name])[0].experiment, lambda _: {})
    change(tmp_path, "*", lambda record: record.update(lacks))
    (verdict,) = judged(tmp_path, name)
    assert verdict.verdict == "not measured" and says(verdict.why, code) and why in verdict.why


@pytest.mark.parametrize(
    ("lost", "figure", "whole"),
    [(None, "does not hold", "does not hold"), (0.0, "not measured", "half measured")],
)
def test_a_loss_that_became_no_number_is_not_alike(
    lost: float | None, figure: str, whole: str, tmp_path: Path
):
    write(tmp_path, "loss_curves", lambda _: {})
    for path in (path.parent for path in tmp_path.glob("loss_curves-[0-9]*/result.json")):
        (run,) = runs_of(path)
        if (run["precision"], run["pin_memory"]) == ("fp16", True):
            change(
                path.parent, path.name, lambda record: record["epochs"][-1].update(train_loss=lost)
            )
    (verdict,) = judged(tmp_path, "loss-alike")
    by_cell = {f"{one.what} {one.where}": one.verdict for one in verdict.figures}
    for half in ("first half", "second half"):
        assert by_cell[f"{half}, precision=fp16 against fp32 pin_memory=true"] == figure
        assert by_cell[f"{half}, precision=fp16 against fp32 pin_memory=false"] == "holds"
    assert verdict.verdict == whole


def test_an_unknown_claim_is_refused_with_the_nearest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    records.write(tmp_path / "a", records.vision())
    assert main(["claims", str(tmp_path), "--only", "fp16-over-fp6"]) == 1
    refusal = find(
        capsys.readouterr().err,
        "claim.unknown",
        key="--only",
        name="fp16-over-fp6",
        near="fp16-over-fp64",
    )
    assert refusal.facts["known"] == [claim.name for claim in CLAIMS]


def test_the_work_of_judging_grows_no_faster_than_the_runs(tmp_path: Path):
    for index in range(240):
        cell = {
            "gpus": 1 + index % 4,
            "seed": index // 12,
            "precision": ("fp64", "fp32", "fp16")[index // 4 % 3],
        }
        records.write(tmp_path / str(index), records.vision(dataset="mnist", **cell))
    runs = runs_of(tmp_path)
    assert sum(verdict.n for verdict in judge(runs)) > 240
    few, many = (calls_of(lambda part=part: judge(part)) for part in (runs[:60], runs))
    assert many < 5 * few


@pytest.mark.parametrize(
    ("unit", "figures", "opposite", "number", "ends"),
    [
        ("faster", (25.0, 20.0, 30.0), False, "25.0", ["20.0", "30.0"]),
        ("faster", (-20.0, None, None), True, "25.0", []),
        ("faster", (-50.0, -60.0, -20.0), True, "100.0", ["25.0", "150.0"]),
        ("faster", (-20.0, -100.0, 10.0), True, "25.0", [(True, ">1000x"), (False, "10.0")]),
        ("less", (-60.0, -60.0, -60.0), True, "60.0", []),
        ("faster", (22.3, -78.8, 158.0), False, "22.3", [(True, "4.72x"), (False, "2.58x")]),
        ("less", (5.0, -2.0, 12.0), False, "5.0", [(True, "2.0"), (False, "12.0")]),
        ("points", (-1.5, -2.0, -1.0), False, "-1.50", ["-2.00", "-1.00"]),
    ],
)
def test_no_figure_is_faster_by_less_than_nothing(
    unit: UnitName, figures: tuple[float, ...], opposite: bool, number: str, ends: list[Any]
):
    """A bound beyond which lies the other side says so, with its own number."""
    phrase = UNITS[unit].phrase(*figures)
    assert (phrase.facts["opposite"], phrase.facts["number"]) == (opposite, number)
    bounds = [one.facts for end in phrase.facts["ends"] for one in told(end)]
    found = [(one["opposite"], one.get("number", one.get("times"))) for one in bounds]
    assert (found or phrase.facts["ends"]) == ends
