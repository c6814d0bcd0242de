"""Words of a command that cannot work: one line with the key and the remedy, and nothing left behind."""

import shlex
import sys
from pathlib import Path

import pytest

from multicard import completion, workloads
from multicard.__main__ import COMMANDS, main
from multicard.cli import command_line
from multicard.config import hydra_config
from multicard.llm import workload as llm
from multicard.messages import say
from multicard.ranks import interruption
from multicard.run import outcome
from multicard.sweep import cells as sweep_cells
from multicard.sweep import executor, slurm_submit
from multicard.sweep.cells import Cell
from multicard.sweep.executor import Pace
from multicard.vision.workload import WORKLOAD
from tests.conftest import ROOT, Called, refusal, typed_llm
from tests.helpers import cells, records

RECORDS = str(ROOT / "tests" / "fixtures" / "records_v1")
WORDS = [
    (["name=žluť"], "name=žluť: Hydra cannot read this value; close its brackets, or quote it: 'name=\"žluť\"'"),
    (["gpus=range(1,2"], "gpus=range(1,2: Hydra cannot read this value; close its brackets"),
    (["name=a\nb"], "name=a\nb: has a character that cannot be printed; leave it out"),
    (["gpus==2"], "gpus==2: has a second equals sign; use gpus=2"),
    (["gpus=1,", "2"], "gpus=1,: has an empty value; write gpus=1,2 without spaces"),
    (["gpus"], "gpus: is no key=value, written without spaces; --help lists the keys"),
    (["--gpus", "2"], "unrecognized arguments: --gpus; flags come first, keys are set as key=value"),
    (["~gpus"], "~gpus: a key cannot be taken away; write gpus=VALUE, or leave it out"),
    (["+gpus=2"], "+gpus=2: the key is there already; write it without +"),
    (["+epoch=2"], "epoch: no such key here; nearest: epochs"),
    (["stop_on_divergence=3"], "stop_on_divergence=3: must be true or false"),
    (["-m", "exclusive=true,2"], "exclusive=true,2: must be true or false"),
    (["-m", "lr=interval(1,3)"], "lr=interval(1,3): name the values, as lr=1,2,3"),
    (["-m", "experiment=table2,table3"], "experiment=table2,table3: takes one value, not a sweep"),
    (["precision=null"], "precision=null: is no option; leave it out for the default"),
    (["dataset=digits,samsum"], "dataset=samsum: belongs to tune_llm.py; train_vision.py has digits"),
]


@pytest.mark.parametrize(("words", "line"), WORDS, ids=[" ".join(words) for words, _ in WORDS])
def test_what_no_command_takes_is_refused_before_it_is_composed(words: list[str], line: str):
    with refusal(line):
        command_line.check(command_line.overrides(words), WORKLOAD)


@pytest.mark.parametrize("value", ["žluť", "it's (odd", 'it\'s "odd" (', "(a\\", "$HOME (`x`"])
def test_a_value_in_the_quotes_of_the_remedy_is_read_as_it_was_typed(value: str):
    with pytest.raises(ValueError, match="or quote it: ") as refused:
        command_line.overrides([f"name={value}"])
    typed = shlex.split(str(refused.value).split("or quote it: ")[1])
    assert [override.value() for override in command_line.overrides(typed)] == [value]


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "gpus=1,2", "rerun=true,false", "++seed=3", "hydra/launcher=submitit_local", "hydra.verbose=true"],
        ["diagnose=1", "exclusive=null", "stop_on_divergence=no", "compile=true", "+hydra.job.env_set.A=b"],
        ['name="žluť"', "tracker.tags=[a,b]", "dataset=mnist", "dataset.root=/a b"],
    ],
)
def test_what_a_command_takes_is_not_refused(words: list[str]):
    command_line.check(command_line.overrides(words), WORKLOAD)


@pytest.mark.parametrize(
    ("words", "read", "told"),
    [
        ("epochs=1 -m gpus=1,2", "-m epochs=1 gpus=1,2", ""),
        ("epochs=1 lr=2 ++epochs=2", "lr=2 ++epochs=2", "epochs=1: left out, as ++epochs=2 comes later"),
        ("--cfg job -m gpus=2 gpus=auto --package job", "-m --cfg job gpus=1 auto=gpus hydra.mode=MULTIRUN "
         "--package job", "gpus=2: left out, as gpus=auto comes later"),
        ("-m dataset=glob(*) layout=glob(*w)", "-m dataset=digits,mnist,images layout=nchw", ""),
        ("hydra.x={A:1} ++hydra.x={B:2}", "hydra.x={A:1} ++hydra.x={B:2}", ""),
    ],
)  # fmt: skip
def test_words_are_read_as_they_are_meant(words: str, read: str, told: str, capsys: pytest.CaptureFixture[str]):
    assert command_line.switched(words.split(), WORKLOAD) == read.split()
    assert capsys.readouterr().err.strip() == told


SLURM, RACE = "hydra/launcher=submitit_slurm", ["-m", "race=images_per_s", "seed=0,1"]
COMPOSED = [
    (["gpus=1.5"], "gpus=1.5: must be a whole number"),
    (["lr=abc"], "lr=abc: must be a number"),
    (["gpus=null"], "gpus=null: must not be null"),
    (["rerun=maybe"], "rerun=maybe: must be true or false"),
    (["tracker.tags=3"], "tracker.tags=3: must be a list, as [a,b]"),
    (["compile=3"], "compile=3: must be true, false or a word"),
    (["hydra/launcher=nope"], "hydra/launcher=nope: no such option; choose one of local, submitit_local, submitit_slu"),
    (["gpus=${nope}"], "gpus: Interpolation key 'nope' not found; write the value, or the name of a key"),
    (["name=${nope:1}"], "name: Unsupported interpolation type nope; write the value, or the name of a key"),
    (["-m", "gpus=${nope},1"], "${nope} is not there; write the value"),
    (["-m", "gpus=1,two"], "gpus=two: must be a whole number"),
    (['name="a\nb"'], r"name='a\nb': must name one folder under multirun/, in at most 255 bytes; use "),
    *(([f"{key}=0"], f"{key}=0: must be 1 or more") for key in ("gpus", "epochs")),
    *((["dry_run=true", f"{key}=0"], f"{key}=0: must be 1 or more") for key in ("gpus", "epochs")),
    (["seed=99999999999999999999"], "seed=99999999999999999999: must be "),
    *(([f"name={name}"], f"name='{name}': must name one folder under multirun/") for name in ("..", "x" * 256)),
    (["name=published"], "name=published: multirun/published is for rows that others measured; choose another"),
    (["=3"], "=3: is no key=value, written without spaces; --help lists the keys"),
    (["gpus=1,2"], "gpus=1,2: several values are a sweep"),
    (["name='a\x1b[2Jb'"], "name="),  # and without the escape
    (["device=cuda"], "device=cuda"),
    (["device=tpu"], "device=tpu: invalid value 'tpu', expected one of [auto, cuda, cpu]"),
    (["dry_run=true", "dataset=mnist", "dataset.root=/nowhere"], "dataset.root=/nowhere"),
    (["dataset=images", "dataset.root=/nowhere"], "dataset.root=/nowhere"),
    (["dataset=mnits"], "dataset=mnits: no such option; choose one of digits, mnist, images"),
    (["dataset.downlod=true"], "dataset.downlod: no such key here; nearest: dataset.download"),
    (["dataset.download=true"], "dataset.download: not a key of the option chosen for dataset; "),  # digits
    (["zzzz=1"], "zzzz: no such key here; --help shows all keys"),
    (["optimizer.lr=0.1"], "optimizer.lr: no such key here; nearest: lr"),
    (["-m", "precision=glob(x*)"], "precision=glob(x*): matches none of fp64, fp32, "),
    (["-m", "precision=glob(f*),bf16"], "precision=glob(f*),bf16: glob() stands alone"),
    (["-m", "lr=glob(*)"], "lr=glob(*): glob is for groups of options; name the values"),
    (["precision=fp8"], "precision=fp8: no such option; choose one of fp64, fp32, "),
    (["method=lora"], "method: belongs to tune_llm.py"),
    (["experiment=templates"], "experiment=templates: belongs to tune_llm.py; train_vision.py has image_size"),
    (["experiment=tabel2"], "experiment=tabel2: no such option; choose one of image_size, layout"),
    (["-m", "hydra/sweeper=basic"], "hydra/sweeper=basic: the cells of a sweep are multicard's own to choose; "),
    (["gpus=9999", "device=cpu"], "gpus=9999: 9,999 CPU ranks would take turns on "),
    (["-m", "gpus=1,auto"], "gpus=1,auto: auto stands alone, as gpus=auto"),
    (["gpus=auto", "hydra.run.dir=x"], "hydra.run.dir=x: gpus=auto makes a sweep; use hydra.sweep.dir"),
    (["auto=gpus", "cpus_per_gpu=0"], "cpus_per_gpu=0: must be 1 or more"),
    (["tracker=wandb"], "tracker=wandb: has keys of its own; set those"),
    (["experiment=shared/vision"], "experiment=shared/vision: is a part of experiments; train_vision.py has image_"),
    (["-m", "gpus=auto", "race=images_per_s", "precision=fp32,bf16"], "gpus=auto: a race is by what cells measure"),
    (["-m", "gpus=auto", "probe=true"], "gpus=auto: is by predictions, which probes are made for; give the numbers"),
    (["-m", "gpus=auto", "predict=true", "predict.gpu=h100-80gb"], "gpus=auto: is of this machine, not of predict.gpu"),
    (["-m", "gpus=auto", SLURM], "gpus=auto: is of this machine, not of SLURM's"),
    (["-m", "gpus=auto", "hydra/launcher=submitit_local", "exclusive=false"], "gpus=auto: cells beside each other are"),
    ([SLURM, "device=cpu", "hydra.launcher.signal_delay_s=x"], "hydra.launcher.signal_delay_s=x: must be a whole num"),
    (
        [SLURM, "device=cpu", "hydra.launcher.signal_delay_s=3600"],
        "hydra.launcher.signal_delay_s=3600: must be less th",
    ),
    ([SLURM, "device=cpu", "hydra.sweep.dir=x%j"], "hydra.sweep.dir=CWD/x%j: SLURM takes % in the names of its logs"),
    ([SLURM, "device=cpu", "hydra.launcher.array_parallelism=0"], "hydra.launcher.array_parallelism=0: must be a who"),
    ([SLURM, "device=cpu", "hydra.launcher.setup=x"], "hydra.launcher.setup=x: write it as [command,...]"),
    ([SLURM, "device=cpu", "+hydra.launcher.mail=me"], "hydra.launcher.mail: submitit has no such option; use hydra"),
    (["repeat=3"], "repeat=3: several runs are a sweep; add -m"),
    (["repeat=no"], "repeat=no: must be 1 or more, or auto"),
    (["repetition=0"], "repetition=0: must be 1 or more"),
    (["-m", "repeat=1,2"], "repeat=1,2: takes one value, not a sweep"),
    (["-m", "precision=fp32,bf16", "repeat=0"], "repeat=0: must be 1 or more, or auto"),
    (["-m", "repeat=auto", "repeat_max=1"], "repeat_max=1: must be 2 or more"),
    (["-m", "repeat=auto", "repeat_error=0"], "repeat_error=0: must be above 0% and below 100%"),
    (["-m", "repeat=auto", "repeat_error=1%%"], "repeat_error=1%%: must be above 0% and below 100%"),
    (["-m", "repeat=auto", "repeat.error=2%"], "repeat.error=2%: write repeat_error=2%"),
    (["-m", "gpus=2", "predict.gpu=nonsense"], "predict.gpu=nonsense: no such GPU; choose one of b200, "),
    ([*RACE, SLURM], "race=images_per_s: runs on one machine, within a job, as by srun --ntasks=1 "),
    ([*RACE, "probe=true"], "race=images_per_s: its cells are probes by themselves; leave out probe=true"),
    ([*RACE, "hydra.sweeper.max_batch_size=2"], "race=images_per_s: is of all cells at once; leave out hydra.sweeper."),
    ([*RACE, "repeat=2"], "race=images_per_s: measures cells by turns, and the best three times; leave out repeat=2"),
    ([*RACE, "nodes=2"], "race=images_per_s: measures cells by turns, on one machine; leave out nodes=2"),
    ([*RACE, "profile=kineto"], "race=images_per_s: measures cells by turns; leave out profile=kineto"),
    ([*RACE, "diagnose=true"], "race=images_per_s: measures cells by turns; leave out diagnose=true"),
    (["-m", "race=images_per_s,tokens_per_s"], "race.figure=images_per_s,tokens_per_s: takes one value, not a sweep"),
    (["-m", "race=total_s", "seed=0,1"], "race=total_s: choose one of images_per_s, samples_per_s, tokens_per_s"),
    (["-m", "race=tokens_per_s", "dry_run=true"], "race=tokens_per_s: train_vision.py has race=images_per_s"),
    (["race=images_per_s"], "race=images_per_s: needs cells to choose from, a sweep; add -m"),
]


@pytest.mark.parametrize(("words", "line"), COMPOSED, ids=[" ".join(words) for words, _ in COMPOSED])
def test_what_hydra_refuses_is_a_line_and_leaves_nothing(
    words: list[str], line: str, called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(slurm_submit.shutil, "which", lambda _: "/bin/true")
    code, printed = called(*words)
    refused = f"refused: {line.replace('CWD', str(tmp_path))}"
    assert code == 1 and printed.startswith(refused) and printed.count("\n") == 1 and "\x1b" not in printed
    assert not list(tmp_path.iterdir())


def test_a_folder_that_was_there_before_or_holds_a_record_stays(tmp_path: Path):
    (tmp_path / "there").mkdir()
    for name in ("there", "measured", "made/empty"):
        hydra_config._make(tmp_path / name, "hydra.sweep.dir", "x")
    (tmp_path / "measured" / "cell").mkdir()
    (tmp_path / "made" / "empty" / "multirun.yaml").write_text("")
    hydra_config.remove_unused()
    assert {path.name for path in tmp_path.iterdir()} == {"there", "measured"}


def test_a_recipe_that_torchtune_does_not_have_is_refused_before_a_rank_starts():
    for kind in ("single_device", "distributed"):
        for name in ("foo", "quantize", f"foo_{kind}"):
            with pytest.raises(ValueError, match=rf"^method\.{kind}={name}: torchtune has no such recipe; .*lora_"):
                llm.WORKLOAD.refuse(typed_llm(f"method.{kind}={name}"))
    llm.WORKLOAD.refuse(typed_llm("method.single_device=full_finetune_single_device"))


def ended(number: int, status: str) -> Cell:
    return cells.cell(number, result=records.as_run({"status": status}))


def test_cells_that_are_refused_alike_are_one_line_of_a_dry_run(capsys: pytest.CaptureFixture[str]):
    problems = ["a=1: no", "", "b=2: no", "a=1: no"]
    made = [
        cells.refused(number, problem, label=f"[{number}/4] ") if problem else cells.cell(number)
        for number, problem in enumerate(problems, 1)
    ]
    sweep_cells.dry_run(sweep := cells.sweep(*made), [("-", sweep.cells)], "runs")
    assert sweep.command.close() == 1
    printed = capsys.readouterr()
    assert printed.err.splitlines() == ["[1/4] and 1 more refused: a=1: no", "[3/4] refused: b=2: no"]
    assert "refused: 3" in printed.out


def test_refused_cells_tell_nothing_of_the_time_that_is_left(capsys, monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(executor, "clock_s", lambda: now_s[0])
    pace = Pace(4)
    pace.say_progress([ended(1, "refused"), ended(2, "refused")])
    assert pace.left_s() is None and capsys.readouterr().out == ""
    now_s[0] = 60.0
    pace.say_progress([ended(3, "ok")])
    assert "  1 of 2 cells ended in 0:01:00; about 0:01:00 left" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 0, "\nbest [FOLDER...] "),
        (["--version"], 0, "multicard 0."),
        (["bets"], 1, "refused: bets: no such command; did you mean best? multicard --help lists all\n"),
        (["xyzzy"], 1, "refused: xyzzy: no such command; multicard --help lists all\n"),
        (["best", "--goal"], 1, "refused: argument --goal: expected one argument\n"),
        (["plan"], 1, "refused: the following arguments are required: JOBS.yaml\n"),
        (["table", "table5", RECORDS], 1, "; this measures it: multicard tune experiment=table5 name=table5\n"),
        (["completion", "tcsh"], 1, "refused: tcsh: there are scripts for bash, zsh, fish\n"),
        (["completion", "bash"], 0, "complete -o default -F _multicard multicard\n"),
    ],
)
def test_the_one_command_lists_its_commands_and_refuses_others(
    words: list[str], code: int, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(sys, "argv", ["multicard", *words])
    monkeypatch.setattr(interruption, "end_at_once", lambda: None)
    try:
        ended = main()
    except SystemExit as exited:
        ended = exited.code
    printed = capsys.readouterr()
    assert ended == code and says in printed.out + printed.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("multicard be", ["best"]),
        ("multicard ", [*COMMANDS]),
        ("multicard best --go", ["--goal"]),
        ("multicard best mul", []),  # files are the shell's
        ("multicard vision -m gpus=2 precision=fp3", ["precision=fp32", "precision=fp32_ieee"]),
        ("multicard tune method=ql", ["method=qlora"]),
    ],
)
def test_words_are_completed(line: str, words: list[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "argv", ["multicard"])
    monkeypatch.setattr(interruption, "end_at_once", lambda: None)
    monkeypatch.setattr(interruption, "answer", lambda _: {})
    assert completion.candidates(line) == words


def test_cells_are_told_apart_by_what_varies_in_columns_repetitions_last():
    words = [["repetition=1", "lr=1", "epochs=3"], ["repetition=1", "lr=0.5", "epochs=3"], ["repetition=2", "lr=1"]]
    assert sweep_cells.settings_apart([[*each, "gpus=2"] for each in words]) == [
        "lr=1   epochs=3 rep 1",
        "lr=0.5 epochs=3 rep 1",
        "lr=1   rep 2         ",
    ]
    assert sweep_cells.settings_apart([["lr=1"]]) == ["lr=1"]
    again = [["lr=1", "repetition=3"], ["lr=2", "repetition=3"]]
    assert sweep_cells.settings_apart(again) == ["lr=1 rep 3", "lr=2 rep 3"]


@pytest.mark.parametrize(("no_colour", "status"), [({}, "\x1b[31mfailed\x1b[0m"), ({"NO_COLOR": "1"}, "failed")])
def test_a_cell_ends_in_one_line_with_its_status_in_colour(no_colour: dict[str, str], status: str, monkeypatch, capsys):
    for name, value in ({"FORCE_COLOR": "1", "TERM": "xterm"} | no_colour).items():  # stands in for a terminal
        monkeypatch.setenv(name, value)
    failed = records.as_run({"status": "failed", "cause": {"kind": "exception", "message": "x" * 200}})
    say(outcome.line(failed, "[1/2] lr=1   "))
    assert capsys.readouterr().out == f"[1/2] lr=1   {status}: {'x' * 200}\n"


def test_a_conclusion_that_fails_is_a_line_and_leaves_the_exit_code(capsys: pytest.CaptureFixture[str]):
    command = cells.sweep().command
    command.runs, command.is_sweep = [records.as_run(records.vision())], True
    assert command.close() == 0 and capsys.readouterr().err == ""
    command.conclude = lambda folders: [] * (1 // 0)
    assert command.close() == 0
    assert capsys.readouterr().err == "no conclusion: ZeroDivisionError: integer division or modulo by zero\n"


def test_groups_without_an_option_may_be_added():
    assert workloads.optional_groups(WORKLOAD) == ["experiment"]
    assert workloads.optional_groups(llm.WORKLOAD) == ["template", "experiment"]
    words = ["+experiment=table2", "+precision=bf16", "+seed=1", "+template=grammar"]
    assert command_line.switched(words, WORKLOAD) == ["experiment=table2", *words[1:]]
    assert command_line.switched(words, llm.WORKLOAD) == ["experiment=table2", *words[1:3], "template=grammar"]
