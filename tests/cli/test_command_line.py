"""Words of a command that cannot work: one line with the key and the remedy,
and nothing left behind.
"""

import re
import shlex
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

import pytest

from multicard import completion, messages, workloads
from multicard.__main__ import COMMANDS, main
from multicard.cli import command, command_line
from multicard.cli.command import help_text
from multicard.cli.launcher_words import LAUNCHERS
from multicard.config import hydra_config
from multicard.llm import workload as llm
from multicard.messages import Message, Parser, say
from multicard.ranks import interruption
from multicard.run import outcome
from multicard.run.workload import Workload
from multicard.sweep import cells as sweep_cells
from multicard.sweep import dry_run, grid, slurm_submit
from multicard.sweep.cells import Cell
from multicard.sweep.grid import Pace
from multicard.vision.workload import WORKLOAD
from tests.conftest import ROOT, Called, typed_llm
from tests.helpers import cells, records
from tests.helpers.messages import codes, find, refused

RECORDS = str(ROOT / "tests" / "fixtures" / "records_v1")
WORDS = [
    (["name=žluť"], "words.unreadable", {"key": "name", "quoted": "'name=\"žluť\"'"}),
    (["gpus=range(1,2"], "words.unreadable", {"key": "gpus", "word": "gpus=range(1,2"}),
    (["name=a\nb"], "words.unprintable", {"key": "name", "word": "name=a\nb"}),
    (["gpus==2"], "words.second-equals-sign", {"key": "gpus", "remedy": "gpus=2"}),
    (["gpus=1,", "2"], "words.empty-value", {"key": "gpus", "word": "gpus=1,"}),
    (["gpus"], "words.no-pair", {"word": "gpus"}),
    (["--gpus", "2"], "words.flag", {"key": "--gpus"}),
    (["~gpus"], "words.taken-away", {"key": "gpus"}),
    (["+gpus=2"], "words.added", {"key": "gpus"}),
    (["+epoch=2"], "words.no-such-key", {"key": "epoch", "near": ["epochs"]}),
    (["stop_on_divergence=3"], "words.switch", {"key": "stop_on_divergence"}),
    (["-m", "exclusive=true,2"], "words.switch", {"key": "exclusive"}),
    (["-m", "lr=interval(1,3)"], "words.continuous-sweep", {"key": "lr"}),
    (["-m", "experiment=table2,table3"], "words.one-value", {"key": "experiment"}),
    (["precision=null"], "words.null-option", {"key": "precision"}),
    (
        ["dataset=digits,samsum"],
        "words.option-of-another-entry",
        {"value": "samsum", "entry": "tune_llm.py"},
    ),
]


@pytest.mark.parametrize(
    ("words", "code", "facts"), WORDS, ids=[" ".join(words) for words, *_ in WORDS]
)
def test_what_no_command_takes_is_refused_before_it_is_composed(
    words: list[str], code: str, facts: dict[str, Any]
):
    with refused(code, **facts):
        command_line.check_overrides(command_line.overrides(words), WORKLOAD)


def test_a_key_of_a_launcher_is_said_to_be_one_or_its_nearest_are_named():
    said = command_line.unknown_key("hydra.launcher.gpu_type", WORKLOAD)
    assert (said.code, said.message.remedies) == (
        "words.key-of-another-launcher",
        ["hydra/launcher=submitit_slurm"],
    )
    near = command_line.unknown_key("hydra.launcher.gpu_typ", WORKLOAD).facts["near"]
    assert near[0] == "hydra.launcher.gpu_type"


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("hydra.launcher.timeout_min", ["time_min"]),
        ("hydra.launcher.mem_gb", ["memory_gb"]),
        ("hydra.launcher.time_min", ["time_min"]),
        ("hydra.launcher.queue", ["hydra.launcher.partition"]),
    ],
)
def test_a_key_of_submitits_launcher_is_known_by_its_name_here(key: str, near: list[str]):
    assert command_line.unknown_key(key, WORKLOAD).facts["near"] == near


@pytest.mark.parametrize(
    ("key", "value", "workload", "remedies"),
    [
        ("dataset.root", "photos", WORKLOAD, ["dataset=images dataset.root=photos"]),
        (
            "dataset.data_files",
            "my chats.jsonl",
            llm.WORKLOAD,
            [
                "dataset=chat 'dataset.data_files=my chats.jsonl'",
                "dataset=preference 'dataset.data_files=my chats.jsonl'",
            ],
        ),
        ("model.path", "llama", llm.WORKLOAD, ["model=hf model.path=llama"]),
        ("dataset.download", "true", WORKLOAD, ["dataset=mnist dataset.download=true"]),
        ("profile.steps", "3", WORKLOAD, ["--help"]),  # of all options but one
    ],
)
def test_a_key_of_another_option_is_answered_by_the_option(
    key: str, value: str, workload: Workload, remedies: list[str]
):
    hydra = f"Could not override '{key}'.\nTo append to your config use +{key}={value}"
    refusal = command_line.explain(hydra, workload)
    assert (refusal.code, refusal.key) == ("words.key-of-another-option", key)
    assert refusal.message.remedies == remedies


@pytest.mark.parametrize("launcher", ["basic", "joblib", "submitit_slrum"])
@pytest.mark.parametrize("sweep", [[], ["-m"]])
def test_launchers_of_others_are_refused(launcher: str, sweep: list[str]):
    overrides = command_line.overrides([*sweep, f"hydra/launcher={launcher}"])
    with refused("words.launcher", key="hydra/launcher", value=launcher):
        command_line.check_overrides(overrides, WORKLOAD)
    for ours in LAUNCHERS:
        command_line.check_overrides(command_line.overrides([f'hydra/launcher="{ours}"']), WORKLOAD)


def test_the_launchers_are_those_with_a_file_and_stand_in_the_help():
    files = (workloads.CONF / "hydra" / "launcher").glob("*.yaml")
    assert {file.stem for file in files} == {*LAUNCHERS}
    workloads.register()
    assert all(launcher in help_text(WORKLOAD, "", []) for launcher in LAUNCHERS)


def test_a_sweep_has_one_launcher():
    overrides = command_line.overrides(["-m", "hydra/launcher=local,submitit_local"])
    with refused("words.launchers", key="hydra/launcher"):
        command_line.check_overrides(overrides, WORKLOAD)


def test_a_refused_option_has_the_entrys_own_to_choose_from():
    with refused(
        "words.option-of-another-entry", key="dataset", choices=["digits", "mnist", "images"]
    ):
        command_line.check_overrides(command_line.overrides(["dataset=samsum"]), WORKLOAD)


@pytest.mark.parametrize("value", ["žluť", "it's (odd", 'it\'s "odd" (', "(a\\", "$HOME (`x`"])
def test_a_value_in_the_quotes_of_the_remedy_is_read_as_it_was_typed(value: str):
    with refused("words.unreadable", key="name") as error:
        command_line.overrides([f"name={value}"])
    typed = shlex.split(error.value.facts["quoted"])
    assert [override.value() for override in command_line.overrides(typed)] == [value]


QUOTED = [  # what is typed, what the remedy is read as, and whether the command sweeps
    ("words=[--device=cpu,--batch_size=4]", [["--device=cpu", "--batch_size=4"]], False),
    ("words=--device=cpu,--batch_size=4", [["--device=cpu", "--batch_size=4"]], False),
    ("words=--a=b", [["--a=b"]], False),
    ("words=[a,b=c,[d=e]]", [["a", "b=c", ["d=e"]]], False),
    ("words=[--a=1],[--a=2]", [["--a=1"], ["--a=2"]], True),
    ("words=--a=1,--b=2", [["--a=1", "--b=2"]], True),
    ("args.text=epoch=1.ckpt,epoch=2.ckpt", ["epoch=1.ckpt", "epoch=2.ckpt"], True),
    ("args.text=plain,epoch=2.ckpt", ["plain", "epoch=2.ckpt"], True),
    ("args.text=epoch=1.ckpt,epoch=2.ckpt", ["epoch=1.ckpt,epoch=2.ckpt"], False),
    ('args.text="a,b=c",d=e', ["a,b=c", "d=e"], True),
    ("args.text={a: b=c, d: 1}", [{"a": "b=c", "d": 1}], False),
    ("args.text=[a=b", ["[a=b"], False),
    ("args.text=[a=b,c", ["[a=b,c"], True),
]


@pytest.mark.parametrize(("word", "values", "sweeps"), QUOTED)
def test_the_quotes_of_the_remedy_leave_lists_and_sweeps_what_they_are(
    word: str, values: list[Any], sweeps: bool
):
    flags = ["-m"] if sweeps else []
    with refused("words.unreadable") as error:
        command_line.overrides([*flags, word])
    (remedy,) = error.value.message.remedies
    (override,) = command_line.overrides([*flags, *shlex.split(remedy)])
    each = (
        override.sweep_string_iterator()
        if override.is_sweep_override()
        else [override.get_value_element_as_str()]
    )
    cells = command_line.overrides([f"{override.get_key_element()}={text}" for text in each])
    assert [cell.value() for cell in cells] == values


@pytest.mark.parametrize(
    "words",
    [
        [
            "-m",
            "gpus=1,2",
            "rerun=true,false",
            "++seed=3",
            "hydra/launcher=submitit_local",
            "hydra.verbose=true",
        ],
        [
            "diagnose=1",
            "exclusive=null",
            "stop_on_divergence=no",
            "compile=true",
            "+hydra.job.env_set.A=b",
        ],
        ['name="žluť"', "tracker.tags=[a,b]", "dataset=mnist", "dataset.root=/a b"],
    ],
)
def test_what_a_command_takes_is_not_refused(words: list[str]):
    command_line.check_overrides(command_line.overrides(words), WORKLOAD)


@pytest.mark.parametrize(
    ("words", "read", "left_out"),
    [
        ("epochs=1 -m gpus=1,2", "-m epochs=1 gpus=1,2", None),
        ("epochs=1 lr=2 ++epochs=2", "lr=2 ++epochs=2", ("epochs=1", "++epochs=2")),
        ("--cfg job -m gpus=2 gpus=auto --package job", "-m --cfg job gpus=1 auto=gpus hydra.mode=MULTIRUN "
         "--package job", ("gpus=2", "gpus=auto")),
        ("-m dataset=glob(*) layout=glob(*w)", "-m dataset=digits,mnist,images layout=nchw", None),
        ("hydra.x={A:1} ++hydra.x={B:2}", "hydra.x={A:1} ++hydra.x={B:2}", None),
    ],
)  # fmt: skip
def test_words_are_read_as_they_are_meant(
    words: str, read: str, left_out: tuple[str, str] | None, capsys: pytest.CaptureFixture[str]
):
    assert command_line.switched(words.split(), WORKLOAD) == read.split()
    said = capsys.readouterr().err
    if left_out is None:
        assert said == ""
    else:
        assert find(said, "words.set-twice").facts == {"word": left_out[0], "later": left_out[1]}


SLURM, RACE = "hydra/launcher=submitit_slurm", ["-m", "race=images_per_s", "seed=0,1"]
COMPOSED = [
    (["gpus=1.5"], "words.value", {"key": "gpus", "must_be": "whole-number"}),
    (["lr=abc"], "words.value", {"key": "lr", "must_be": "number"}),
    (["gpus=null"], "words.value", {"key": "gpus", "must_be": "not-null"}),
    (["rerun=maybe"], "words.value", {"key": "rerun", "must_be": "true-or-false"}),
    (["tracker.tags=3"], "words.value", {"key": "tracker.tags", "must_be": "list"}),
    (["compile=3"], "words.value", {"key": "compile", "must_be": "true-false-or-word"}),
    (["tracker=wandb"], "words.value", {"key": "tracker", "must_be": "group"}),
    (
        ["-m", "gpus=1,two"],
        "words.value",
        {"key": "gpus", "word": "gpus=two", "must_be": "whole-number"},
    ),
    (["device=tpu"], "words.value-as-hydra-says", {"key": "device", "word": "device=tpu"}),
    (
        ["hydra/launcher=nope"],
        "words.launcher",
        {"key": "hydra/launcher", "choices": ["local", "submitit_local", "submitit_slurm"]},
    ),
    (
        ["dataset=mnits"],
        "words.no-such-option",
        {"value": "mnits", "choices": ["digits", "mnist", "images"]},
    ),
    (["precision=fp8"], "words.no-such-option", {"key": "precision", "value": "fp8"}),
    (["experiment=tabel2"], "words.no-such-option", {"key": "experiment", "value": "tabel2"}),
    (["gpus=${nope}"], "config.reference", {"key": "gpus"}),
    (["name=${nope:1}"], "config.reference", {"key": "name"}),
    (["-m", "gpus=${nope},1"], "words.reference", {"name": "nope"}),
    (['name="a\nb"'], "config.name-no-folder", {"key": "name", "value": "a\nb"}),
    (["name='a\x1b[2Jb'"], "config.name-no-folder", {"key": "name"}),
    *(([f"name={name}"], "config.name-no-folder", {"value": name}) for name in ("..", "x" * 256)),
    (["name=published"], "config.name-published", {"key": "name"}),
    *(([f"{key}=0"], "config.least", {"key": key, "least": 1}) for key in ("gpus", "epochs")),
    *(
        (["dry_run=true", f"{key}=0"], "config.least", {"key": key, "least": 1})
        for key in ("gpus", "epochs")
    ),
    (["seed=99999999999999999999"], "config.overflow", {"key": "seed", "bits": 63}),
    (["=3"], "words.no-pair", {"word": "=3"}),
    (["gpus=1,2"], "words.sweep-without-m", {"key": "gpus", "word": "gpus=1,2"}),
    (["device=cuda"], "placement.no-cuda", {"key": "device"}),
    (
        ["dataset.downlod=true"],
        "words.no-such-key",
        {"near": ["dataset.download", "dataset.root", "dataset.std"]},
    ),
    # digits
    (["dataset.download=true"], "words.key-of-another-option", {"key": "dataset.download"}),
    (["zzzz=1"], "words.no-such-key", {"key": "zzzz", "near": []}),
    (["optimizer.lr=0.1"], "words.typed-otherwise", {"typed": "optimizer.lr=0.1"}),
    (["model.blocks=fused"], "words.key-of-earlier-version", {"key": "model.blocks"}),
    (["method=lora"], "words.key-of-another-entry", {"key": "method", "entry": "tune_llm.py"}),
    (
        ["experiment=templates"],
        "words.option-of-another-entry",
        {"value": "templates", "entry": "tune_llm.py"},
    ),
    (
        ["experiment=shared/vision"],
        "words.part-of-experiments",
        {"key": "experiment", "value": "shared/vision"},
    ),
    (["-m", "precision=glob(x*)"], "words.glob-of-nothing", {"key": "precision"}),
    (["-m", "precision=glob(f*),bf16"], "words.glob-among-others", {"key": "precision"}),
    (["-m", "lr=glob(*)"], "words.glob-of-values", {"key": "lr"}),
    (["-m", "hydra/sweeper=basic"], "words.sweeper", {"key": "hydra/sweeper"}),
    (["-m", "gpus=1,auto"], "words.auto-among-others", {"key": "gpus"}),
    (["repeat=no"], "config.repeat", {"key": "repeat", "value": "no"}),
    (["repetition=0"], "config.least", {"key": "repetition", "least": 1}),
    (["-m", "repeat=1,2"], "words.one-value", {"key": "repeat"}),
    (["-m", "precision=fp32,bf16", "repeat=0"], "config.repeat", {"value": "0"}),
    (["-m", "repeat=auto", "repeat_max=1"], "config.repeat-max", {"key": "repeat_max", "least": 2}),
    (
        ["-m", "repeat=auto", "repeat_error=0"],
        "config.share",
        {"key": "repeat_error", "value": "0"},
    ),
    (
        ["-m", "repeat=auto", "repeat_error=1%%"],
        "config.share",
        {"key": "repeat_error", "value": "1%%"},
    ),
    (
        ["-m", "repeat=auto", "repeat.error=2%"],
        "words.repeat-is-no-group",
        {"remedy": "repeat_error=2%"},
    ),
    ([*RACE, SLURM], "config.race-slurm", {"key": "race"}),
    ([*RACE, "probe=true"], "config.race-probe", {"key": "race"}),
    (
        [*RACE, "hydra.sweeper.max_batch_size=2"],
        "config.race-batches",
        {"key": "race", "batch_size": 2},
    ),
    ([*RACE, "exclusive=false"], "config.race-packed", {"key": "race"}),
    ([*RACE, "repeat=2"], "config.race-repeat", {"key": "race", "repeat": "2"}),
    ([*RACE, "nodes=2"], "config.race-nodes", {"key": "race", "nodes": 2}),
    ([*RACE, "profile=kineto"], "config.race-profile", {"key": "race", "profile": "kineto"}),
    ([*RACE, "diagnose=true"], "config.race-diagnose", {"key": "race"}),
    (["-m", "race=images_per_s,tokens_per_s"], "words.one-value", {"key": "race.figure"}),
    (["-m", "race=total_s", "seed=0,1"], "config.race-figure", {"key": "race", "value": "total_s"}),
]
DISTANT = [  # refused after it is composed, by other parts of the program
    (["dry_run=true", "dataset=mnist", "dataset.root=/nowhere"], None, "dataset.root"),
    (["dataset=images", "dataset.root=/nowhere"], None, "dataset.root"),
    (["gpus=9999", "device=cpu"], "run.too-many-ranks", "gpus"),
    (["gpus=auto", "hydra.run.dir=x"], "auto.run-folder", "hydra.run.dir"),
    (["auto=gpus", "cpus_per_gpu=0"], "auto.cpus", "cpus_per_gpu"),
    (["-m", "gpus=auto", "race=images_per_s", "precision=fp32,bf16"], "auto.gpus-of-race", "gpus"),
    (["-m", "gpus=auto", "probe=true"], "auto.gpus-of-probe", "gpus"),
    (["-m", "gpus=auto", "predict=true", "predict.gpu=h100-80gb"], "auto.gpus-elsewhere", "gpus"),
    (["-m", "gpus=auto", SLURM], "auto.gpus-of-slurm", "gpus"),
    (
        ["-m", "gpus=auto", "hydra/launcher=submitit_local", "exclusive=false"],
        "auto.gpus-beside",
        "gpus",
    ),
    (
        [SLURM, "device=cpu", "hydra.launcher.signal_delay_s=x"],
        "slurm.whole-number",
        "hydra.launcher.signal_delay_s",
    ),
    (
        [SLURM, "device=cpu", "hydra.launcher.signal_delay_s=3600"],
        "slurm.early-signal",
        "hydra.launcher.signal_delay_s",
    ),
    ([SLURM, "device=cpu", "hydra.sweep.dir=x%j"], "slurm.percent", "hydra.sweep.dir"),
    (
        [SLURM, "device=cpu", "hydra.launcher.array_parallelism=0"],
        "slurm.whole-number",
        "hydra.launcher.array_parallelism",
    ),
    ([SLURM, "device=cpu", "hydra.launcher.setup=x"], "slurm.form", "hydra.launcher.setup"),
    ([SLURM, "device=cpu", "+hydra.launcher.mail=me"], "slurm.no-option", "hydra.launcher.mail"),
    (["repeat=3"], "sweep.repeat-alone", "repeat"),
    (["-m", "gpus=2", "predict.gpu=nonsense"], "predict.gpu", "predict.gpu"),
    (["-m", "race=tokens_per_s", "dry_run=true"], "race.figure", "race"),
    (["race=images_per_s"], "sweep.race-alone", "race"),
]


@pytest.fixture
def refusal_of(
    called: Called, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[list[str]], str]:
    """The one line with which a command is refused, which leaves nothing behind."""

    def refusal(words: list[str]) -> str:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
        monkeypatch.setattr(slurm_submit.shutil, "which", lambda _: "/bin/true")
        code, printed = called(*words)
        assert code == 1 and printed.count("\n") == 1 and "\x1b" not in printed, printed
        assert not list(tmp_path.iterdir())
        return printed

    return refusal


@pytest.mark.parametrize(
    ("words", "code", "facts"), COMPOSED, ids=[" ".join(words) for words, *_ in COMPOSED]
)
def test_what_hydra_refuses_is_a_line_and_leaves_nothing(
    words: list[str], code: str, facts: dict[str, Any], refusal_of: Callable[[list[str]], str]
):
    find(refusal_of(words), code, **facts)


@pytest.mark.parametrize(
    ("words", "code", "key"), DISTANT, ids=[" ".join(words) for words, *_ in DISTANT]
)
def test_what_is_refused_after_it_is_composed_leaves_nothing(
    words: list[str], code: str | None, key: str, refusal_of: Callable[[list[str]], str]
):
    line = refusal_of(words)
    assert key in line
    if code is not None:
        find(line, code, key=key)


@pytest.mark.parametrize("words", [["name='a\x1b[2Jb'"], ["name='a\nb'"], ["seed=${a\x1b[2J}"]])
def test_a_refusal_has_no_letters_that_cannot_be_printed(
    words: list[str], refusal_of: Callable[[list[str]], str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(messages, "BY_CODE", False)
    assert refusal_of(words).removesuffix("\n").isprintable()


def test_a_folder_that_was_there_before_or_holds_a_record_stays(tmp_path: Path):
    (tmp_path / "there").mkdir()
    for name in ("there", "measured", "made/empty"):
        hydra_config._create_folder(tmp_path / name, "hydra.sweep.dir", "x")
    (tmp_path / "measured" / "cell").mkdir()
    (tmp_path / "made" / "empty" / "multirun.yaml").write_text("")
    hydra_config.remove_unused()
    assert {path.name for path in tmp_path.iterdir()} == {"there", "measured"}


def test_a_recipe_that_torchtune_does_not_have_is_refused_before_a_rank_starts():
    for kind in ("single_device", "distributed"):
        for name in ("foo", "quantize", f"foo_{kind}"):
            with refused("llm.no-such-recipe", key=f"method.{kind}"):
                llm.WORKLOAD.refuse(typed_llm(f"method.{kind}={name}"))
    llm.WORKLOAD.refuse(typed_llm("method.single_device=full_finetune_single_device"))


def ended(number: int, status: str) -> Cell:
    return cells.cell(number, result=records.as_run({"status": status}))


def test_cells_that_are_refused_alike_are_one_line_of_a_dry_run(capsys: pytest.CaptureFixture[str]):
    one, other = Message("test.one", "a=1: no"), Message("test.other", "b=2: no")
    problems = [one, None, other, one]
    made = [
        cells.refused(number, problem, label=f"[{number}/4] ") if problem else cells.cell(number)
        for number, problem in enumerate(problems, 1)
    ]
    dry_run.show(sweep := cells.sweep(*made), [("-", sweep.cells)], "runs")
    assert sweep.command.close() == 1
    printed = capsys.readouterr()
    assert codes(printed.err) == ["test.one", "test.other"]
    first, second = (re.findall(r"\d+", line) for line in printed.err.splitlines())
    assert first == ["1", "4", "1"] and second == ["3", "4"]  # the first stands for one more
    assert find(printed.out, "sweep.counts", refused=3)


def test_refused_cells_tell_nothing_of_the_time_that_is_left(capsys, monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(grid, "clock_s", lambda: now_s[0])
    pace = Pace(4)
    pace.say_progress([ended(1, "refused"), ended(2, "refused")])
    assert pace.left_s() is None and capsys.readouterr().out == ""
    now_s[0] = 60.0
    pace.say_progress([ended(3, "ok")])
    assert find(capsys.readouterr().out, "sweep.pace", ended=1, cells=2, left_s=60.0)


@pytest.fixture
def typed_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[Any, str]]:
    """The exit code of `multicard WORDS`, and what it prints."""

    def ended(*words: str) -> tuple[Any, str]:
        monkeypatch.setattr(sys, "argv", ["multicard", *words])
        monkeypatch.setattr(interruption, "end_at_once", lambda: None)
        try:
            code = main()
        except SystemExit as exited:
            code = exited.code
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return ended


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ([], "\nbest [FOLDER...] "),
        (["--version"], "multicard 0."),
        (["completion", "bash"], "complete -o default -F _multicard multicard\n"),
    ],
)
def test_the_one_command_lists_its_commands(
    words: list[str], shown: str, typed_in: Callable[..., tuple[Any, str]]
):
    code, printed = typed_in(*words)
    assert code == 0 and shown in printed


@pytest.mark.parametrize(
    ("words", "code", "facts"),
    [
        (["bets"], "command.unknown", {"name": "bets", "near": ["best"]}),
        (["xyzzy"], "command.unknown", {"name": "xyzzy", "near": []}),
        (["best", "--goal"], "command.bad-argument", {"key": "--goal", "near": []}),
        (["best", "--gaol", "x"], "command.bad-argument", {"key": "--gaol", "near": ["--goal"]}),
        (["plan"], "command.bad-argument", {"key": None}),  # JOBS.yaml is missing
        (
            ["completion", "tcsh"],
            "completion.no-script",
            {"shell": "tcsh", "choices": ["bash", "zsh", "fish"]},
        ),
    ],
)
def test_the_one_command_refuses_others(
    words: list[str], code: str, facts: dict[str, Any], typed_in: Callable[..., tuple[Any, str]]
):
    ended, printed = typed_in(*words)
    assert ended == 1 and printed.count("\n") == 1
    find(printed, code, **facts)


def test_what_is_not_measured_has_its_command_as_this_one_was_typed(
    typed_in: Callable[..., tuple[Any, str]],
):
    ended, printed = typed_in("table", "table5", RECORDS)
    assert ended == 0 and "multicard tune experiment=table5 name=table5" in printed


def test_what_a_flags_type_says_keeps_its_code(capsys: pytest.CaptureFixture[str]):
    def refuse(text: str) -> NoReturn:
        raise ArgumentTypeError(Message("test.no-size", f"{text} is no size", value=text))

    parser = Parser()
    parser.add_argument("--size", type=refuse)
    with pytest.raises(SystemExit):
        parser.parse_args(["--size", "big"])
    printed = capsys.readouterr().err
    assert find(printed, "command.bad-argument").key == "--size"
    assert find(printed, "test.no-size").facts == {"value": "big"}


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
    words = [
        ["repetition=1", "lr=1", "epochs=3"],
        ["repetition=1", "lr=0.5", "epochs=3"],
        ["repetition=2", "lr=1"],
    ]
    assert sweep_cells.settings_apart([[*each, "gpus=2"] for each in words]) == [
        "lr=1   epochs=3 rep 1",
        "lr=0.5 epochs=3 rep 1",
        "lr=1   rep 2         ",
    ]
    assert sweep_cells.settings_apart([["lr=1"]]) == [""]  # the sweep's first line has said it
    assert sweep_cells.settings_apart([["lr=1", "repetition=3"]]) == ["rep 3"]
    again = [["lr=1", "repetition=3"], ["lr=2", "repetition=3"]]
    assert sweep_cells.settings_apart(again) == ["lr=1 rep 3", "lr=2 rep 3"]


@pytest.mark.parametrize(
    ("no_colour", "status"), [({}, "\x1b[31mfailed\x1b[0m"), ({"NO_COLOR": "1"}, "failed")]
)
def test_a_cell_ends_in_one_line_with_its_status_in_colour(
    no_colour: dict[str, str], status: str, monkeypatch, capsys
):
    # stands in for a terminal
    for name, value in ({"FORCE_COLOR": "1", "TERM": "xterm"} | no_colour).items():
        monkeypatch.setenv(name, value)
    failed = records.as_run(
        {"status": "failed", "cause": {"kind": "exception", "message": "x" * 200}}
    )
    say(outcome.line(failed, "[1/2] lr=1   "))
    assert capsys.readouterr().out == f"[1/2] lr=1   {status}: {'x' * 200}\n"


def test_a_conclusion_that_fails_is_a_line_and_leaves_the_exit_code(
    capsys: pytest.CaptureFixture[str],
):
    command = cells.sweep().command
    command.runs, command.is_sweep = [records.as_run(records.vision())], True
    assert command.close() == 0 and capsys.readouterr().err == ""
    command.conclude = lambda folders: [] * (1 // 0)
    assert command.close() == 0
    assert (
        "ZeroDivisionError" in find(capsys.readouterr().err, "sweep.no-conclusion").facts["reason"]
    )


def test_groups_without_an_option_may_be_added():
    assert workloads.optional_groups(WORKLOAD) == ["experiment"]
    assert workloads.optional_groups(llm.WORKLOAD) == ["template", "experiment"]
    words = ["+experiment=table2", "+precision=bf16", "+seed=1", "+template=grammar"]
    assert command_line.switched(words, WORKLOAD) == ["experiment=table2", *words[1:]]
    assert command_line.switched(words, llm.WORKLOAD) == [
        "experiment=table2",
        *words[1:3],
        "template=grammar",
    ]


@pytest.mark.parametrize("workload", workloads.WORKLOADS, ids=lambda workload: workload.name)
def test_help_lists_the_keys_that_a_user_may_set_and_no_others(workload: Workload):
    workloads.register()
    helped = command.help_text(workload, "", [])
    listed = set(re.findall(r"^  ([\w.]+)=", helped, re.MULTILINE))
    internal = {"auto", "repetition"}
    if "global_batch_size" in listed:
        internal.add("batch_size_asked")
    assert {"gpus", "repeat"} <= listed and not internal & listed
    assert internal <= {field.name for field in fields(workload.schema)}
