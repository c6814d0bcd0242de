"""What is read of run folders, and what `list` says of it."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from analysis import experiments
from analysis.__main__ import main
from analysis.commands import list_runs
from analysis.runs import load, sql
from multicard.records.limits import APART, KINDS, OTHER_STEPS, OTHER_WEIGHTS
from multicard.records.output import BOOKTABS, FORMATS, NAMED
from multicard.records.text_table import ELLIPSIS
from tests.analysis.conftest import Said
from tests.conftest import ROOT
from tests.helpers import messages, records
from tests.helpers.messages import Told, codes, find, says, told


def keys(value: Any, depth: int) -> Any:
    """The keys of a record's objects; with all of those within it, `depth` levels down."""
    return (
        {k: keys(v, depth - 1) for k, v in value.items()}
        if isinstance(value, dict) and depth
        else None
    )


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("fixture", "words", "build"), [("measured", ["gpus=2"], "vision"), ("tuned", [], "llm")]
)
def test_the_builder_makes_records_as_the_entries_leave_them(
    fixture: str, words: list[str], build: str, request
):
    real = request.getfixturevalue(fixture)(*words)
    folder, made = Path(real.pop("folder")), getattr(records, build)(device="cpu")
    assert keys(made, 1) == keys(real, 1)
    assert keys(made["axes"], 1) == keys(real["axes"], 1)
    assert set(made["config"]) == set(real["config"])
    assert set(made["epochs"][0]) <= set(real["epochs"][0])
    assert set(made["segments"][0]) == set(real["segments"][0])
    (run,) = load.read_runs([folder]).runs
    statistics = real["step_s" if build == "vision" else "iteration_s"]
    measured_s = run.measured_s()
    assert run["step_s"] == statistics["mean"] == pytest.approx(measured_s.mean(), rel=1e-12)
    assert len(measured_s) == statistics["count"] == run["steps"] > 0


def test_broken_and_future_records_are_named_and_skipped(tmp_path: Path, said: Said):
    text = json.dumps(records.vision())
    broken = {
        "cut": text[: len(text) // 2],
        "bytes": b"\xff\xfe\x00{",
        "typed": json.dumps(records.vision(total_s="[red]many[/red]")),
        "surrogate": text.replace("NVIDIA", "\\ud800"),
        "deep": "[" * 100_000,
        "future": json.dumps({"schema_version": 2, "kind": 7}),
        "nothing": "{}",
    }
    for name, content in broken.items():
        records.write(tmp_path / "bad" / name, {})
        path = tmp_path / "bad" / name / "result.json"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with messages.refused("runs.unreadable", more=len(broken) - 1):
        load.read_runs([tmp_path])
    records.write(tmp_path / "good", records.vision())
    (records.write(tmp_path / "running", {}) / "result.json").unlink()
    records.write(tmp_path / ".good.before", records.vision())
    found = load.read_runs([tmp_path])
    assert [run.folder.name for run in found.runs] == ["good"]
    why = {one.folder.name: one.why for one in found.skipped}
    assert set(why) == {*broken, "running"}
    assert "2" in why["future"] and "$.total_s" in why["typed"]
    assert says(why["running"], "runs.unfinished")
    printed = said("list", tmp_path)
    assert says(printed, "list.runs", shown=1, found=1, not_ok={})
    assert printed.count("skipped") == NAMED + 1 and f"{tmp_path}/bad/bytes" in printed


@pytest.mark.parametrize(
    ("folder", "schema_versions", "code"),
    [("", (), "runs.none"), ("none", (), "runs.no-folder"), ("", (9, 9), "runs.unreadable")],
)
def test_folders_without_a_run_that_can_be_read_are_refused(
    folder: str, schema_versions: tuple[int, ...], code: str, tmp_path: Path, refused: Said
):
    records.write_all(tmp_path, *({"schema_version": version} for version in schema_versions))
    refusal = find(refused("list", tmp_path / folder), code)
    if schema_versions:
        assert refusal.facts["more"] == 1 and "9" in str(refusal.facts["why"])
    else:
        assert str(tmp_path) in next(iter(refusal.facts.values()))


def test_a_run_found_twice_counts_once(tmp_path: Path):
    records.write(tmp_path / "s" / "a", records.vision())
    assert len(load.read_runs([tmp_path, tmp_path / "s", tmp_path / "s" / "a"]).runs) == 1


def test_where_and_sort_are_sql(tmp_path: Path):
    for index, (precision, gpus) in enumerate([("fp16", 1), ("fp16", 2), ("fp32", 2), ("fp16", 4)]):
        limit = 96 if index == 1 else None
        record = records.vision(
            precision=precision, gpus=gpus, total_s=9.5 - index, dataset__train_limit=limit
        )
        records.write(tmp_path / str(index), record)
    runs = load.read_runs([tmp_path]).runs

    def found(where: str | None, sort: str | None = None) -> str:
        return "".join(run.folder.name for run in sql.select(runs, where, sort))

    assert found("precision='fp16' and gpus>=2") == "13"
    assert found("PRECISION = 'fp16' and total_s / 2 < 4") == "3"
    assert found('"dataset.train_limit" = 96') == "1"
    assert found("true -- a comment") == "0123"
    # no run has one
    assert found("reward_accuracy / 2 > 0.5 or reward_accuracy = 'none' or gpus = 4") == "3"
    assert found("COLUMNS('gpus$') = 2 and true") == "12"
    assert found(None, "gpus desc, total_s") == "3210"
    assert found(None, "dataset.train_limit") == "1023"
    with messages.refused("list.column", key="--sort") as caught:
        found(None, "gpu")
    near = ["gpus", "cpus_per_gpu", "price.gpu_hour"]
    assert says(str(caught.value), "list.no-column", column="gpu", near=near)


@pytest.mark.parametrize(
    ("where", "code", "facts", "within"),
    [
        ("presicion='fp16'", "list.no-column", {"column": "presicion"}, "precision"),
        ("nothing_alike=1", "list.no-column", {"column": "nothing_alike", "near": []}, ""),
        ("train_limit=1", "list.no-column", {"column": "train_limit"}, "dataset.train_limit"),
        ("precision=bf16 and gpus=1", "list.column-in-condition", {}, ""),  # texts need quotes
        ("gpus ==", "list.not-sql", {}, "Parser Error"),
        ("gpus = 'two'", "list.database", {}, "Conversion Error"),
        ("1=1); drop table runs; select (1", "list.not-sql", {}, "Parser Error"),
        ("1=1 union all select 99", "list.not-sql", {}, "Parser Error"),
        ("1=1) union all (select 99", "list.not-sql", {}, "Parser Error"),
        (" ", "list.empty-condition", {"key": "--where"}, ""),
        ("precision = '\udc80'", "list.database", {}, "cannot encode"),
        (
            "exists(select * from read_text('/etc/hostname'))",
            "list.database",
            {},
            "Permission Error",
        ),
        # nor a Python variable
        ("exists(select * from words)", "list.database", {}, "does not exist"),
        ("repeat('x', 3e9::bigint) = name", "list.too-much-memory", {"gb": 2}, ""),
        (
            "(select count(*) from range(100000000000) t(i) where i % 7 = gpus) > 1",
            *("list.too-long", {"s": 1.0}, ""),
        ),
    ],
)
def test_a_bad_expression_is_one_line(
    where: str,
    code: str,
    facts: dict[str, Any],
    within: str,
    tmp_path: Path,
    refused: Said,
    monkeypatch,
):
    """`within`: the nearest column, or a part of DuckDB's own words."""
    monkeypatch.setattr(sql, "MAX_QUERY_S", 1.0 if code == "list.too-long" else 60.0)
    records.write(tmp_path / "a", records.vision())
    line = refused("list", tmp_path, "--where", where)
    found = find(line, code, **facts).facts
    assert (
        within in found.get("error", "")
        if "near" not in found
        else found["near"][:1] == [within] * bool(within)
    )
    assert code == "list.empty-condition" or says(line, "list.condition", key="--where")


def test_columns_of_several_types_and_spellings_can_be_asked_for(tmp_path: Path):
    values = [True, None, "auto", 3, 2.5, [1, 2], 10**30]
    for index, value in enumerate(values):
        record = records.vision()
        record["config"] |= {"odd": value, "GPUS": 7, 'a"b': index}
        records.write(tmp_path / str(index), record)
    runs = load.read_runs([tmp_path]).runs
    assert len(sql.select(runs, "odd = 'true' or odd = '[1, 2]' or odd = '3'")) == 3
    assert len(sql.select(runs, "gpus = 1", 'a"b desc')) == 7


def test_an_interrupted_command_ends_in_one_line(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(load, "read_runs", lambda *_, **__: os.kill(os.getpid(), signal.SIGINT))
    assert main(["list", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert (printed.out, told(printed.err)) == (
        "",
        [Told("analysis.interrupted", None, {"signal": "SIGINT"})],
    )


def test_headings_are_the_names_that_columns_takes(tmp_path: Path, said: Said):
    records.write(tmp_path / "a", records.vision(precision="fp16"))
    records.write(tmp_path / "b", records.vision(gpus=2, hardware="NVIDIA H100", dirty=True))
    records.write(tmp_path / "c", records.llm())
    headings = [
        line.split() for line in said("list", tmp_path).splitlines() if " status  total_s  " in line
    ]
    assert len(headings) == 2  # a table for each kind
    names = list(dict.fromkeys(name for line in headings for name in line))
    assert {"images_per_s", "tokens_per_s", "hardware", "marks"} <= set(names)
    assert said("list", tmp_path, "--columns", ",".join(names)).splitlines()[0].split() == names


def test_a_line_is_as_wide_as_the_terminal_and_shows_why_runs_failed(tmp_path: Path):
    message = (
        "rank 0: batch_size=16: leaves a batch of one image, " + 20 * "which cannot be trained on "
    )
    failed: dict[str, Any] = {
        "status": "failed",
        "cause": {"kind": "exception", "message": message},
    }
    for index in range(4):
        more = {
            "precision": f"fp{index}",
            "dataset__train_limit": index,
            "hardware": f"NVIDIA H20{index}",
        }
        record = records.vision(
            **more, **(failed if index > 1 else {}), segments=[records.segment(host=f"n{index}")]
        )
        records.write(tmp_path / str(index), record | {"name": f"a name {index} of many words"})
    found = load.read_runs([tmp_path])
    for width in (120, 80):
        lines = list_runs.output(found, found.runs, None).lines(width)
        assert max(map(len, lines)) <= width
        assert "total_s" in lines[1] and [line.split()[-2] for line in lines[2:4]] != ["-", "-"]
        assert "list.no-room" in codes(" ".join(lines))
        (cause,) = [line for line in lines if line.startswith("failed (2 runs): ")]
        assert message.startswith(cause.partition(": ")[2].removesuffix(ELLIPSIS))
    whole = list_runs.output(found, found.runs, None).lines(None)
    assert f"failed (2 runs): {message}" in whole and "list.no-room" not in codes(" ".join(whole))


SEEN = {"in_both": 5, "two_labels": 0, "tested": 100, "compared": 500, "images": 500}


def test_a_mark_is_shown_with_its_meaning(tmp_path: Path):
    apart = {
        kind.sign: msgspec.to_builtins(kind.limit()) for kind in (APART, OTHER_WEIGHTS, OTHER_STEPS)
    }
    marked = {
        "*": records.vision(oversubscribed=True),
        "c": records.vision(device="cpu"),
        "!": records.vision(gpu=records.gpu(by="solve")),
        "&": records.vision(load=records.load(1.7)),
        ">": records.vision(device="cpu", gpus=4, cores=2),
        "p": records.vision(beside=1),
        "r": records.llm(),
        "s": records.vision() | {"config": records.vision()["config"] | {"scale": "smoke"}},
        "t": records.vision(profile__window="start"),
        "z": records.vision(
            step_s={"mean": 1.0, "count": 100, "warmup_count": 5, "stalled_count": 1}
        ),
        "~": records.vision(
            step_s={"mean": 1.0, "count": 20, "warmup_count": 5, "slow_steps": [7, 19]}
        ),
        "m": records.vision(data=records.data() | {"changed": "dataset 1a2b, now 3c4d"}),
        "e": records.vision(data=records.data() | {"repeated": SEEN}),
        **{
            sign: records.llm(model__weights="models/llama", limits=[limit])
            for sign, limit in apart.items()
        },
        "+": records.vision(segments=[records.segment(), records.segment(6)]),
        "f": records.script(seen=["it read ck.pt"], seen_codes=["script.went-on"]),
        "4": records.llm(
            model__weights="models/llama", held_out={"rows": 5, "int4_problem": "no room"}
        ),
        "d": records.vision(dirty=True),
    }
    assert list(marked) == [mark.sign for mark in KINDS]
    records.write_all(tmp_path, *marked.values())
    records.write(
        tmp_path / "plain", records.llm(model__weights="models/llama") | {"scale": "full"}
    )
    found = load.read_runs([tmp_path])
    assert [run["marks"] for run in found.runs] == [
        *[sign.replace(">", "c>") for sign in marked],
        "",
    ]
    lines = list_runs.output(found, found.runs, None).lines(None)
    meanings = {mark.sign: str(mark.says) for mark in KINDS}
    (slow,) = [
        limit.says for run in found.runs for limit in run.limits if limit.code == "slow-steps"
    ]
    assert says(slow, "limit.slow-steps-named", steps=[7, 19])
    assert lines[-len(KINDS) :] == [
        f"{sign}  {text}" for sign, text in (meanings | {"~": slow}).items()
    ]
    assert [run["marks"] for run in sql.select(found.runs, "disturbed or smoke")] == ["!", "s"]


def test_chosen_columns_are_written_as_they_are_also_without_a_run(
    tmp_path: Path, said: Said, refused: Said
):
    records.write(tmp_path / "r" / "a", records.vision(total_s=1.23456789))
    words = ["list", str(tmp_path / "r"), "--csv", str(tmp_path / "o.csv"), "--columns"]
    assert "gpus  total_s\n   1    1.235" in said(*words, "gpus,Total_s")
    assert (tmp_path / "o.csv").read_text().splitlines() == ["gpus,total_s", "1,1.23456789"]
    assert says(refused(*words, "gpus,nothing"), "list.no-column", column="nothing")
    assert says(said(*words, "gpus,Total_s", "--where", "gpus=9"), "list.runs", shown=0, found=1)
    assert (tmp_path / "o.csv").read_text() == "gpus,total_s\n"


def test_runs_in_folders_with_names_of_any_bytes_are_shown(tmp_path: Path, said: Said):
    folder = records.write(tmp_path / os.fsdecode(b"caf\xe9"), records.vision())
    table, page = tmp_path / "runs.csv", tmp_path / "page.html"
    assert said("list", tmp_path, "--columns", "folder", "--csv", table).count("caf") == 1
    said("report", tmp_path, "--out", page)
    assert r"caf\xe9" in table.read_text() and "caf" in page.read_text() and folder.exists()


def test_refused_cells_are_counted_and_shown_where_their_status_is_asked_for(
    tmp_path: Path, said: Said
):
    records.write(tmp_path / "a", records.vision())
    records.write(
        tmp_path / "b",
        records.vision(status="refused", cause={"message": "gpus=0: no"}) | {"config": {}},
    )
    for words, shown in (["--sort", "status"], False), (["--where", "status='refused'"], True):
        printed = said("list", tmp_path, *words)
        assert ("gpus=0: no" in printed, says(printed, "list.refused-cells", n=1)) == (
            shown,
            not shown,
        )


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (["list"], "runs"),
        (["best"], "rows"),
        (["best", "--goal", "memory"], "rows"),
        (["compare", "--by", "precision"], "rows"),
        (["table", "table2"], "rows"),
        (["claims", "--only", "fp16-over-fp64"], "claims"),
        (["predictions"], "figures"),
    ],
)
def test_a_dash_gets_what_a_command_found_and_nothing_else(
    words: list[str], where: str, tmp_path: Path, capsys
):
    for index, precision in enumerate(("fp64", "fp16", "fp16")):
        record = records.vision(precision=precision, seed=index, prediction=records.prediction())
        records.write(tmp_path / str(index), record, records.steps([0.1] * 20))
    (records.write(tmp_path / "broken", {}) / "result.json").write_text("{")
    found = {}
    for form in FORMATS:
        assert main([*words, f"--{form}", "-", str(tmp_path)]) == 0
        found[form], notes = capsys.readouterr()
        assert "skipped" in notes and notes.count("\n") == 1
    rows = json.loads(found["json"])
    assert rows["skipped"][0]["folder"] == str(tmp_path / "broken") and rows[where]
    assert len([*csv.DictReader(io.StringIO(found["csv"]))]) == len(rows[where])
    assert found["markdown"].count("|-") + found["markdown"].count("|:-") > 1
    assert found["latex"].startswith(f"{BOOKTABS}\n\n\\begin{{table}}\n") and found[
        "latex"
    ].endswith("\\end{table}\n")


def test_files_are_all_written_or_none(tmp_path: Path, said: Said, refused: Said):
    records.write(tmp_path / "r", records.vision())
    file, other = tmp_path / "a", tmp_path / "a.md"
    assert refused("list", tmp_path, "--csv", file, "--json", file)
    assert not file.exists()
    output = said("list", "--csv", file, tmp_path, "--markdown", other)
    assert says(output, "list.runs", found=1)
    assert says(output, "output.written", form="csv", file=str(file))
    assert says(output, "output.written", form="markdown", file=str(other))
    assert other.read_text().startswith("| ")


@pytest.mark.parametrize(
    ("words", "code", "facts"),
    [
        *(
            (["compare", ".", f"--gate={gate}"], "analysis.share", {"value": gate})
            for gate in ("5", "1", "x%", "nan")
        ),
        (["list", ".", "--columns", ""], "analysis.empty-name", {"value": ""}),
        (["compare", ".", "--by", "gpus,"], "analysis.empty-name", {"value": "gpus,"}),
        (["list", ".", "--price", "dear"], "analysis.price", {"value": "dear"}),
        (["best", ".", "--memory", "80"], "analysis.size", {"value": "80"}),
        (["best", ".", "--gpus", "0"], "analysis.gpus", {"value": "0"}),
        (
            ["table", "table9", "."],
            "analysis.no-experiment",
            {"name": "table9", "known": experiments.names()},
        ),
        (["table", "table5", "."], "table.not-measured", {"experiment": "table5"}),
        (["report", "absent"], "runs.no-folder", {"folder": "absent"}),
        (["report", ".", "--watch", "--out", "a.html"], "analysis.out-of-watch", {"key": "--out"}),
        (["dashboard", "--project", "a/b"], "analysis.wandb-name", {"value": "a/b"}),
        (["dashboard", "--project", ""], "analysis.wandb-name", {"value": ""}),
        (["dashboard", "--entity", "a b?"], "analysis.wandb-name", {"value": "a b?"}),
        (["sync", "--project", "a/b"], "analysis.wandb-name", {"value": "a/b"}),
        (["sync", "--entity", ""], "analysis.wandb-name", {"value": ""}),
    ],
)
def test_what_a_command_cannot_do_is_refused_and_leaves_nothing(
    words: list[str],
    code: str,
    facts: dict[str, Any],
    tmp_path: Path,
    refused: Said,
    monkeypatch: pytest.MonkeyPatch,
):
    records.write(tmp_path / "r", records.vision())
    monkeypatch.chdir(tmp_path)
    assert says(refused(*words), code, **facts) and [path.name for path in tmp_path.iterdir()] == [
        "r"
    ]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["list", ".", "--csv", "no/o"], ["--csv", "no/o"]),
        (["list", ".", "--json", "/dev/null"], ["--json", "/dev/null"]),
        (["best", ".", "--gaol=time"], ["--gaol=time", "--goal"]),
        (["report", ".", "--open"], ["--open"]),
        (["best", ".", "--goal", "fun"], ["--goal", "fun"]),
        (["figure", "table9", "."], ["table9", "table2"]),
        (["figure", "table2", "."], ["experiment=table2 name=table2"]),
        (
            ["figure", "all", "."],
            ["experiment=table2 name=table2", f"{len(experiments.names()) - 1}"],
        ),
        (["figure", "efficiency", "."], ["efficiency"]),
        (["figure", "phases", ".", "--out", "a.gif"], ["--out", "a.gif", "svg", "pdf", "png"]),
        (["figure", "phases", ".", "--out", "-"], ["--out", "svg"]),
        (["report", ".", "--out", "."], ["--out"]),
        (["report", ".", "--out", "-"], ["--out"]),
        (["dashboard", "--dry-run", "no/o.json"], ["--dry-run", "no/o.json"]),
        (["export", "."], ["--anonymous"]),
    ],
)
def test_a_refusal_is_one_line_that_names_what_is_wrong(
    words: list[str],
    named: list[str],
    tmp_path: Path,
    refused: Said,
    monkeypatch: pytest.MonkeyPatch,
):
    records.write(tmp_path / "r", records.vision())
    monkeypatch.chdir(tmp_path)
    line = refused(*words)
    assert all(part in line for part in named) and [path.name for path in tmp_path.iterdir()] == [
        "r"
    ]


@pytest.mark.usefixtures("processes")
def test_the_command_starts_without_torch_and_ends_with_its_reader(tmp_path: Path):
    records.write(tmp_path / "a", records.vision())
    code = (
        "import sys, multicard; from analysis.__main__ import main; main(sys.argv[1:]);"
        " multicard.load(sys.argv[2])"
    )
    code += "; print(bool({'torch', 'altair', 'pandas'} & {*sys.modules}))"
    line = [sys.executable, "-c", code, "list", str(tmp_path)]
    ended = subprocess.run(
        line, capture_output=True, text=True, check=True, cwd=ROOT, env={**os.environ}
    )
    assert ended.stdout.splitlines()[-1] == "False"
    piped = f"{sys.executable} -m analysis list {tmp_path} | true"
    ended = subprocess.run(piped, shell=True, capture_output=True, text=True, check=True, cwd=ROOT)
    assert not ended.stderr
