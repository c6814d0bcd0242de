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

import pytest

from analysis import experiments
from analysis.__main__ import main
from analysis.commands import list_runs
from analysis.runs import load, sql
from analysis.runs.columns import MARKS
from multicard.records.output import FORMATS
from tests.analysis.conftest import Said
from tests.conftest import ROOT
from tests.helpers import records


def keys(value: Any, depth: int) -> Any:
    """The keys of a record's objects; with all of those within it, `depth` levels down."""
    return {k: keys(v, depth - 1) for k, v in value.items()} if isinstance(value, dict) and depth else None


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(("fixture", "words", "build"), [("measured", ["gpus=2"], "vision"), ("tuned", [], "llm")])
def test_the_builder_makes_records_as_the_entries_leave_them(fixture: str, words: list[str], build: str, request):
    real = request.getfixturevalue(fixture)(*words)
    folder, made = Path(real.pop("folder")), getattr(records, build)(device="cpu")
    assert keys(made, 1) == keys(real, 1)
    assert keys(made["axes"], 1) == keys(real["axes"], 1)
    assert set(made["config"]) == set(real["config"])
    assert set(made["epochs"][0]) <= set(real["epochs"][0])
    assert set(made["segments"][0]) == set(real["segments"][0])
    (run,) = load.read([folder]).runs
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
    with pytest.raises(ValueError, match="can be read"):
        load.read([tmp_path])
    records.write(tmp_path / "good", records.vision())
    (records.write(tmp_path / "running", {}) / "result.json").unlink()
    records.write(tmp_path / ".good.before", records.vision())
    found = load.read([tmp_path])
    assert [run.folder.name for run in found.runs] == ["good"]
    why = {one.folder.name: one.why for one in found.skipped}
    assert set(why) == {*broken, "running"}
    assert why["future"] == "schema_version 2 is newer than this program's 1: update multicard"
    assert "$.total_s" in why["typed"] and "still being measured" in why["running"]
    printed = said("list", tmp_path)
    assert "1 run" in printed and "skipped 3 more" in printed and f"skipped {tmp_path}/bad/bytes: " in printed


@pytest.mark.parametrize(
    ("folder", "schema_versions", "says"),
    [("", (), "no run under"), ("none", (), "is no folder"), ("", (9, 9), "schema_version 9 is newer than this")],
)
def test_folders_without_a_run_that_can_be_read_are_refused(
    folder: str, schema_versions: tuple[int, ...], says: str, tmp_path: Path, refused: Said
):
    records.write_all(tmp_path, *({"schema_version": version} for version in schema_versions))
    error = refused("list", tmp_path / folder)
    assert says in error and ("(and 1 more)" in error) == bool(schema_versions)


def test_a_run_found_twice_counts_once(tmp_path: Path):
    records.write(tmp_path / "s" / "a", records.vision())
    assert len(load.read([tmp_path, tmp_path / "s", tmp_path / "s" / "a"]).runs) == 1


def test_where_and_sort_are_sql(tmp_path: Path):
    for index, (precision, gpus) in enumerate([("fp16", 1), ("fp16", 2), ("fp32", 2), ("fp16", 4)]):
        limit = 96 if index == 1 else None
        record = records.vision(precision=precision, gpus=gpus, total_s=9.5 - index, dataset__train_limit=limit)
        records.write(tmp_path / str(index), record)
    runs = load.read([tmp_path]).runs

    def found(where: str | None, sort: str | None = None) -> str:
        return "".join(run.folder.name for run in sql.select(runs, where, sort))

    assert found("precision='fp16' and gpus>=2") == "13"
    assert found("PRECISION = 'fp16' and total_s / 2 < 4") == "3"
    assert found('"dataset.train_limit" = 96') == "1"
    assert found("true -- a comment") == "0123"
    assert found("reward_accuracy / 2 > 0.5 or reward_accuracy = 'none' or gpus = 4") == "3"  # no run has one
    assert found("COLUMNS('gpus$') = 2 and true") == "12"
    assert found(None, "gpus desc, total_s") == "3210"
    assert found(None, "dataset.train_limit") == "1023"
    message = r'^--sort: no column "gpu"; did you mean gpus, cpus_per_gpu, "price.gpu_hour"\? \(list --csv'
    with pytest.raises(ValueError, match=message):
        found(None, "gpu")


@pytest.mark.parametrize(
    ("where", "told"),
    [
        ("presicion='fp16'", 'no column "presicion"; did you mean precision'),
        ("nothing_alike=1", 'no column "nothing_alike" (list --csv FILE writes all columns)'),
        ("train_limit=1", 'did you mean "dataset.train_limit"'),
        ("precision=bf16 and gpus=1", "a text needs single quotes"),
        ("gpus ==", "write an SQL condition, as "),
        ("gpus = 'two'", "Conversion Error"),
        ("1=1); drop table runs; select (1", "Parser Error"),
        ("1=1 union all select 99", "Parser Error"),
        ("1=1) union all (select 99", "Parser Error"),
        (" ", "is empty"),
        ("precision = '\udc80'", "cannot encode"),
        ("exists(select * from read_text('/etc/hostname'))", "Permission Error"),
        ("exists(select * from words)", "does not exist"),  # nor a Python variable
        ("repeat('x', 3e9::bigint) = name", "takes more than 2 GB"),
        ("(select count(*) from range(100000000000) t(i) where i % 7 = gpus) > 1", "takes longer than 1 s"),
    ],
)
def test_a_bad_expression_is_one_line(where: str, told: str, tmp_path: Path, refused: Said, monkeypatch):
    monkeypatch.setattr(sql, "MOST_S", 1.0 if "longer" in told else 60.0)
    records.write(tmp_path / "a", records.vision())
    error = refused("list", tmp_path, "--where", where)
    assert error.startswith("--where: ") and told in error


def test_columns_of_several_types_and_spellings_can_be_asked_for(tmp_path: Path):
    values = [True, None, "auto", 3, 2.5, [1, 2], 10**30]
    for index, value in enumerate(values):
        record = records.vision()
        record["config"] |= {"odd": value, "GPUS": 7, 'a"b': index}
        records.write(tmp_path / str(index), record)
    runs = load.read([tmp_path]).runs
    assert len(sql.select(runs, "odd = 'true' or odd = '[1, 2]' or odd = '3'")) == 3
    assert len(sql.select(runs, "gpus = 1", 'a"b desc')) == 7


def test_an_interrupted_command_ends_in_one_line(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(load, "read", lambda *_, **__: os.kill(os.getpid(), signal.SIGINT))
    assert main(["list", str(tmp_path)]) == 1
    assert capsys.readouterr() == ("", "interrupted by SIGINT\n")


def test_headings_are_the_names_that_columns_takes(tmp_path: Path, said: Said):
    records.write(tmp_path / "a", records.vision(precision="fp16"))
    records.write(tmp_path / "b", records.vision(gpus=2, hardware="NVIDIA H100", dirty=True))
    records.write(tmp_path / "c", records.llm())
    headings = [line.split() for line in said("list", tmp_path).splitlines() if " status  total_s  " in line]
    assert len(headings) == 2  # a table for each kind
    names = list(dict.fromkeys(name for line in headings for name in line))
    assert {"images_per_s", "tokens_per_s", "hardware", "marks"} <= set(names)
    assert said("list", tmp_path, "--columns", ",".join(names)).splitlines()[0].split() == names


def test_a_line_is_as_wide_as_the_terminal_and_shows_why_runs_failed(tmp_path: Path):
    message = "rank 0: batch_size=16: leaves a batch of one image, " + 20 * "which cannot be trained on "
    failed: dict[str, Any] = {"status": "failed", "cause": {"kind": "exception", "message": message}}
    for index in range(4):
        more = {"precision": f"fp{index}", "dataset__train_limit": index, "hardware": f"NVIDIA H20{index}"}
        record = records.vision(**more, **(failed if index > 1 else {}), segments=[records.segment(host=f"n{index}")])
        records.write(tmp_path / str(index), record | {"name": f"a name {index} of many words"})
    found = load.read([tmp_path])
    for width in (120, 80):
        lines = list_runs.output(found, found.runs, None).lines(width)
        assert max(len(line) for line in lines if not line.startswith("no room")) <= width
        assert "total_s" in lines[1] and [line.split()[-2] for line in lines[2:4]] != ["-", "-"]
        assert any(line.startswith("no room for: ") for line in lines)
        assert any(line.startswith("failed (2 runs): rank 0: batch_size=16: leaves a batch of one") for line in lines)
    whole = list_runs.output(found, found.runs, None).lines(None)
    assert f"failed (2 runs): {message}" in whole and not any("no room" in line for line in whole)


def test_a_mark_is_shown_with_its_meaning(tmp_path: Path):
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
        "z": records.vision(step_s={"mean": 1.0, "count": 100, "warmup_count": 5, "stalled_count": 1}),
        "m": records.vision(data=records.data() | {"changed": "dataset 1a2b, now 3c4d"}),
        "+": records.vision(segments=[records.segment(), records.segment(6)]),
        "d": records.vision(dirty=True),
    }
    assert list(marked) == [mark.sign for mark in MARKS]
    records.write_all(tmp_path, *marked.values())
    records.write(tmp_path / "plain", records.llm(model__weights="models/llama") | {"scale": "full"})
    found = load.read([tmp_path])
    assert [run["marks"] for run in found.runs] == [*[sign.replace(">", "c>") for sign in marked], ""]
    lines = list_runs.output(found, found.runs, None).lines(None)
    assert lines[-len(MARKS) :] == [f"{mark.sign}  {mark.meaning}" for mark in MARKS]
    assert [run["marks"] for run in sql.select(found.runs, "disturbed or smoke")] == ["!", "s"]


def test_chosen_columns_are_written_as_they_are_also_without_a_run(tmp_path: Path, said: Said, refused: Said):
    records.write(tmp_path / "r" / "a", records.vision(total_s=1.23456789))
    words = ["list", str(tmp_path / "r"), "--csv", str(tmp_path / "o.csv"), "--columns"]
    assert "gpus  total_s\n   1    1.235" in said(*words, "gpus,Total_s")
    assert (tmp_path / "o.csv").read_text().splitlines() == ["gpus,total_s", "1,1.23456789"]
    assert "nothing" in refused(*words, "gpus,nothing")
    assert "0 of 1 run\n" in said(*words, "gpus,Total_s", "--where", "gpus=9")
    assert (tmp_path / "o.csv").read_text() == "gpus,total_s\n"


def test_runs_in_folders_with_names_of_any_bytes_are_shown(tmp_path: Path, said: Said):
    folder = records.write(tmp_path / os.fsdecode(b"caf\xe9"), records.vision())
    table, page = tmp_path / "runs.csv", tmp_path / "page.html"
    assert said("list", tmp_path, "--columns", "folder", "--csv", table).count("caf") == 1
    said("report", tmp_path, "--out", page)
    assert "caf?" in table.read_text() and "caf" in page.read_text() and folder.exists()


def test_refused_cells_are_counted_and_shown_where_their_status_is_asked_for(tmp_path: Path, said: Said):
    records.write(tmp_path / "a", records.vision())
    records.write(tmp_path / "b", records.vision(status="refused", cause={"message": "gpus=0: no"}) | {"config": {}})
    for words, shown in (["--sort", "status"], False), (["--where", "status='refused'"], True):
        printed = said("list", tmp_path, *words)
        assert ("gpus=0: no" in printed, "1 refused cell left out" in printed) == (shown, not shown)


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
def test_a_dash_gets_what_a_command_found_and_nothing_else(words: list[str], where: str, tmp_path: Path, capsys):
    for index, precision in enumerate(("fp64", "fp16", "fp16")):
        record = records.vision(precision=precision, seed=index, prediction=records.prediction())
        records.write(tmp_path / str(index), record, records.steps([0.1] * 20))
    (records.write(tmp_path / "broken", {}) / "result.json").write_text("{")
    found = {}
    for form in FORMATS:
        assert main([*words, f"--{form}", "-", str(tmp_path)]) == 0
        found[form], notes = capsys.readouterr()
        assert notes.startswith("skipped ") and notes.count("\n") == 1
    rows = json.loads(found["json"])
    assert rows["skipped"][0]["folder"] == str(tmp_path / "broken") and rows[where]
    assert len([*csv.DictReader(io.StringIO(found["csv"]))]) == len(rows[where])
    assert found["markdown"].count("|-") + found["markdown"].count("|:-") > 1
    assert found["latex"].startswith("\\begin{table}\n") and found["latex"].endswith("\\end{table}\n")


def test_files_are_all_written_or_none(tmp_path: Path, said: Said, refused: Said):
    records.write(tmp_path / "r", records.vision())
    file, other = tmp_path / "a", tmp_path / "a.md"
    assert "two of them have one file" in refused("list", tmp_path, "--csv", file, "--json", file)
    assert not file.exists()
    assert "1 run\n" in said("list", "--csv", file, tmp_path, "--markdown", other)
    assert other.read_text().startswith("| ")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["list", ".", "--csv", "no/o"], "there is no folder no"),
        (["list", ".", "--json", "/dev/null"], "/dev/null: is no file"),
        (["best", ".", "--gaol=time"], "unrecognized arguments: --gaol=time; did you mean --goal?"),
        (["report", ".", "--open"], "unrecognized arguments: --open\n"),
        (["list", ".", "--columns", ""], "--columns: '' has an empty name"),
        (["compare", ".", "--by", "gpus,"], "--by: 'gpus,' has an empty name"),
        *((["compare", ".", f"--gate={gate}"], "is no share; write") for gate in ("5", "1", "x%", "nan")),
        (["list", ".", "--price", "dear"], "dear is no price of a GPU for an hour"),
        (["best", ".", "--memory", "80"], "80 is no size; write 80GB or 80GiB"),
        (["best", ".", "--gpus", "0"], "0 is no number of GPUs"),
        (["best", ".", "--goal", "fun"], "invalid choice"),
        (["table", "table9", "."], "no experiment table9; there are table2, "),
        (["table", "table5", "."], "table5 is not measured; this measures it: python tune_llm.py experiment=table5 "),
        (["figure", "table9", "."], "no figure table9; there are all, table2"),
        (["figure", "table2", "."], "table2: not measured: python train_vision.py experiment=table2 name=table2"),
        (["figure", "all", "."], f"experiment=table2 name=table2 (nor any of {len(experiments.names()) - 1} others)"),
        (["figure", "efficiency", "."], "efficiency: of 1 run none has what it shows"),
        (["figure", "phases", ".", "--out", "a.gif"], "--out a.gif: a figure is written as .svg, .pdf, .png"),
        (["figure", "phases", ".", "--out", "-"], "--out -: a figure is written as"),
        (["report", ".", "--out", "."], "is no file; name one"),
        (["report", ".", "--out", "-"], "name a file"),
        (["report", "absent"], "absent is no folder"),
        (["dashboard", "--project", "a/b"], "--project: 'a/b' is no name in W&B: W&B takes names"),
        (["dashboard", "--project", ""], "--project: '' is no name in W&B"),
        (["dashboard", "--entity", "a b?"], "--entity: 'a b?' is no name in W&B"),
        (["dashboard", "--dry-run", "no/o.json"], "there is no folder no"),
        (["sync", "--project", "a/b"], "W&B takes names of"),
        (["sync", "--entity", ""], "W&B takes names of"),
        (["export", "."], "the following arguments are required: --anonymous"),
    ],
)
def test_what_a_command_cannot_do_is_one_line_and_leaves_nothing(
    words: list[str], text: str, tmp_path: Path, refused: Said, monkeypatch: pytest.MonkeyPatch
):
    records.write(tmp_path / "r", records.vision())
    monkeypatch.chdir(tmp_path)
    assert text in f"{refused(*words)}\n" and [path.name for path in tmp_path.iterdir()] == ["r"]


@pytest.mark.usefixtures("processes")
def test_the_command_starts_without_torch_and_ends_with_its_reader(tmp_path: Path):
    records.write(tmp_path / "a", records.vision())
    code = "import sys, multicard; from analysis.__main__ import main; main(sys.argv[1:]); multicard.load(sys.argv[2])"
    code += "; print(bool({'torch', 'altair', 'pandas'} & {*sys.modules}))"
    line = [sys.executable, "-c", code, "list", str(tmp_path)]
    ended = subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT, env={**os.environ})
    assert ended.stdout.splitlines()[-1] == "False"
    piped = f"{sys.executable} -m analysis list {tmp_path} | true"
    ended = subprocess.run(piped, shell=True, capture_output=True, text=True, check=True, cwd=ROOT)
    assert not ended.stderr
