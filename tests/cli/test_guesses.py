"""Guesses of the first ten minutes: what newcomers type who know other programs, and what each is
answered. A guess is taken, or refused with the whole command as it is typed here, which works.
"""

import json
import shlex
from pathlib import Path

import pytest

from analysis import __main__ as analysis
from multicard import workloads
from multicard.__main__ import main
from multicard.cli import command_line
from multicard.cli.vocabulary import Vocabulary
from multicard.messages import Refusal
from multicard.records.short_names import folder_of_runs
from tests.helpers.messages import find

VISION, TUNING, SCRIPT = "train_vision.py", "tune_llm.py", "measure_script.py"
TAKEN = "taken"
OTHERWISE = "words.typed-otherwise"
HUB = "words.on-the-hub"
ABSENT = "words.no-such-path"
ELSEWHERE = "words.path-of-another-entry"

DASHED = "-m script=dashed.py args.batch-size=32,128"

# what is typed, what is answered, and the words of the command that it is answered with
GUESSES = [
    # by users of Hugging Face
    (TUNING, "model=./llama", TAKEN, "engine=trl model=hf model.path=./llama"),
    (TUNING, "model=hf model.path=llama", TAKEN, "engine=trl model=hf model.path=llama"),
    (
        TUNING,
        "-m model=hf model.path=llama sharding=ddp,fsdp gpus=2",
        TAKEN,
        "-m engine=trl model=hf model.path=llama sharding=ddp,fsdp gpus=2",
    ),
    (TUNING, "--model hf model.path=llama", OTHERWISE, "engine=trl model=hf model.path=llama"),
    (TUNING, "model=llama", TAKEN, "engine=trl model=hf model.path=llama"),
    (TUNING, "dataset=chats.jsonl", TAKEN, "dataset=chat dataset.data_files=chats.jsonl"),
    (
        TUNING,
        "dataset=pairs.jsonl",
        TAKEN,
        "dataset=preference method=dpo dataset.data_files=pairs.jsonl",
    ),
    (TUNING, "model=Qwen/Qwen3-0.6B", HUB, "engine=trl model=hf model.path=Qwen3-0.6B"),
    (
        TUNING,
        "--model_name_or_path meta-llama/Llama-3.1-8B --dataset_name chats.jsonl",
        HUB,
        "engine=trl model=hf model.path=Llama-3.1-8B dataset=chat dataset.data_files=chats.jsonl",
    ),
    (
        TUNING,
        "dataset=HuggingFaceH4/ultrachat_200k",
        OTHERWISE,
        "dataset=chat dataset.source=HuggingFaceH4/ultrachat_200k",
    ),
    (TUNING, "dataset=alpaca", OTHERWISE, "dataset=alpaca_cleaned"),
    (TUNING, "dataset=absent.jsonl", ABSENT, "dataset=chat dataset.data_files=absent.jsonl"),
    (TUNING, "chats.jsonl", OTHERWISE, "dataset=chat dataset.data_files=chats.jsonl"),
    (TUNING, "dataset=./photos", ELSEWHERE, "dataset=images dataset.root=./photos"),
    (TUNING, "model=llama3-8b", OTHERWISE, "model=llama3_8b"),
    (TUNING, "learning_rate=1e-4", OTHERWISE, "lr=1e-4"),
    (TUNING, "lr=0.1 learning_rate=1e-3", OTHERWISE, "lr=0.1 lr=1e-3"),
    (TUNING, "per_device_train_batch_size=4", OTHERWISE, "batch_size=4"),
    (TUNING, "gradient_accumulation_steps=8", TAKEN, "gradient_accumulation_steps=8"),
    (TUNING, "num_train_epochs=1", OTHERWISE, "epochs=1"),
    (TUNING, "max_seq_length=2048 packing=true", OTHERWISE, "max_seq_len=2048 packed=true"),
    (TUNING, "--gradient_checkpointing --bf16", OTHERWISE, None),
    (TUNING, "bf16=true", OTHERWISE, "precision=bf16"),
    (TUNING, "method=adapter lora_r=16", OTHERWISE, "method=lora method.lora_rank=16"),
    (TUNING, "load_in_4bit=true", OTHERWISE, "method=qlora"),
    (TUNING, "strategy=fsdp", OTHERWISE, "sharding=fsdp"),
    (TUNING, "attn_implementation=flash_attention_2", OTHERWISE, "attention=flash"),
    (TUNING, "optim=adamw_bnb_8bit", OTHERWISE, "optimizer=adamw_8bit"),
    (TUNING, "output_dir=./out", OTHERWISE, "name=out"),
    (TUNING, "report_to=none", OTHERWISE, "tracker.mode=disabled"),
    # by users of timm and torchvision
    (VISION, "--epochs 3", OTHERWISE, "epochs=3"),
    (VISION, "--epochs=3 gpus=1", OTHERWISE, "epochs=3 gpus=1"),
    (VISION, "dataset=./photos", TAKEN, "dataset=images dataset.root=./photos"),
    (VISION, "dataset=labels.csv", TAKEN, "dataset=images dataset.root=labels.csv"),
    (VISION, "-m dataset=photos,flat", TAKEN, "-m dataset=images dataset.root=photos,flat"),
    (VISION, "dataset=/data/imagenet", ABSENT, "dataset=images dataset.root=/data/imagenet"),
    (VISION, "dataset=imagenet", OTHERWISE, "dataset=images dataset.root=FOLDER"),
    (VISION, "dataset=chats.jsonl", ELSEWHERE, "dataset=chat dataset.data_files=chats.jsonl"),
    (
        VISION,
        "dataset=uoft-cs/cifar10",
        HUB,
        "dataset=images dataset.root=cifar10",
    ),
    (VISION, "photos/", OTHERWISE, "dataset=images dataset.root=photos/"),
    (
        VISION,
        "--data-dir photos --model resnet50 -m --batch-size 32 --lr 0.1 --amp",
        OTHERWISE,
        "-m dataset=images dataset.root=photos model=resnet50 batch_size=32 lr=0.1 precision=half",
    ),
    (VISION, "model=ResNet50", OTHERWISE, "model=resnet50"),
    (VISION, "model=microsoft/resnet-50", OTHERWISE, "model=resnet50"),
    (VISION, "model=resnet50d", TAKEN, "model=resnet50d"),
    (VISION, "bs=32", OTHERWISE, "batch_size=32"),
    (VISION, "img_size=224", OTHERWISE, "dataset.image_size=224"),
    (VISION, "amp=true", OTHERWISE, "precision=half"),
    (VISION, "layout=channels_last", OTHERWISE, "layout=nhwc"),
    (VISION, "channels_last=true", OTHERWISE, "layout=nhwc"),
    (VISION, "optimizer=AdamW --wd 0.05", OTHERWISE, None),
    (VISION, "optimizer.lr=0.1", OTHERWISE, "lr=0.1"),
    (VISION, "--workers 8 --no-compile", OTHERWISE, "num_workers=8 compile=false"),
    (VISION, "--epcohs 3", OTHERWISE, "epochs=3"),
    (VISION, "--epochs 3 --mixup 0.2", OTHERWISE, "epochs=3"),
    (VISION, "threads=4", OTHERWISE, "loader.threads=4 loader=dali"),
    # by users of PyTorch Lightning
    (VISION, "max_epochs=3 trainer.devices=4", OTHERWISE, "epochs=3 gpus=4"),
    (VISION, "precision=16-mixed", OTHERWISE, "precision=fp16"),
    (VISION, "-m precision=float16,bfloat16", OTHERWISE, "-m precision=fp16,bf16"),
    (VISION, "accelerator=gpu", OTHERWISE, "device=cuda"),
    (VISION, "strategy=fsdp", "words.no-such-option", None),
    (VISION, "fast_dev_run=true", OTHERWISE, "scale=smoke"),
    (VISION, "wandb=false", OTHERWISE, "tracker.mode=disabled"),
    # by users of torchrun
    (SCRIPT, "train.py --lr 0.1", OTHERWISE, "script=train.py args.lr=0.1"),
    (SCRIPT, "train.py fit --amp gpus=1", OTHERWISE, None),
    (SCRIPT, "--nproc_per_node=2 train.py", OTHERWISE, "gpus=2 script=train.py"),
    (SCRIPT, "script=train.py lr=0.1", OTHERWISE, "script=train.py args.lr=0.1"),
    (SCRIPT, "script=train.py --lr 0.1", OTHERWISE, "script=train.py args.lr=0.1"),
    # options in the script's own spelling, which its source has
    (SCRIPT, "-m script=dashed.py batch_size=32,128", OTHERWISE, DASHED),
    (SCRIPT, "-m script=dashed.py --batch-size 32,128", OTHERWISE, DASHED),
    (SCRIPT, "-m script=dashed.py --batch_size=32,128", OTHERWISE, DASHED),
    (SCRIPT, "-m script=dashed.py -- --batch-size 32,128", OTHERWISE, DASHED),
    (SCRIPT, "-m dashed.py --batch_size 32,128", OTHERWISE, DASHED),
    (SCRIPT, "script=train.py batch_size=32", OTHERWISE, "script=train.py args.batch_size=32"),
    (SCRIPT, "script=dashed.py --kineto", OTHERWISE, "script=dashed.py profile=kineto"),
    (SCRIPT, "script=dashed.py --nsys", OTHERWISE, "script=dashed.py args.nsys=true"),
    (VISION, "gpus=0,1", OTHERWISE, "gpus=2"),
    (VISION, "-m gpus=0,1", TAKEN, "-m gpus=0,1"),
    (VISION, "gpu=0", OTHERWISE, "gpus=1"),
    (VISION, "num_gpus=4", OTHERWISE, "gpus=4"),
    # by administrators of SLURM
    (VISION, "slurm=true", OTHERWISE, "hydra/launcher=submitit_slurm"),
    (
        VISION,
        "--partition=gpu --nodes=2 --time=01:30:00 --mem 64G",
        OTHERWISE,
        "hydra.launcher.partition=gpu nodes=2 time_min=90 memory_gb=64"
        " hydra/launcher=submitit_slurm",
    ),
    (VISION, "-m launcher=slurm", OTHERWISE, "-m hydra/launcher=submitit_slurm"),
    (VISION, "--dry-run", OTHERWISE, "dry_run=true"),
    (VISION, "--multirun gpus=1,2", TAKEN, "--multirun gpus=1,2"),
    # by readers of the papers, and in haste
    (VISION, "experiment=table_2", OTHERWISE, "experiment=table2"),
    (VISION, "table2", OTHERWISE, "experiment=table2"),
    (VISION, "name mine", OTHERWISE, "name=mine"),
    (VISION, "lr = 0.1", OTHERWISE, "lr=0.1"),
    (VISION, "--cfg job bs=32", OTHERWISE, "--cfg job batch_size=32"),
    (VISION, "~gpus", "words.taken-away", None),
    (VISION, "zzzz=1", TAKEN, "zzzz=1"),  # Hydra refuses it
    (VISION, "steps=10", TAKEN, "steps=10"),  # those of a profile are others
]
IDS = [f"{entry} {typed}" for entry, typed, *_ in GUESSES]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with images, tables, a model, chats and a script."""
    for name in ("photos/train/cat", "photos/val/cat", "flat/cat", "llama"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "a.png").touch()
    (tmp_path / "llama" / "config.json").write_text("{}")
    (tmp_path / "labels.csv").write_text("path,label\na.png,cat\n")
    (tmp_path / "chats.jsonl").write_text(json.dumps({"messages": []}))
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"chosen": "a", "rejected": "b"}))
    (tmp_path / "train.py").touch()
    (tmp_path / "dashed.py").write_text('options = ["--batch-size", "--nsys"]')
    monkeypatch.chdir(tmp_path)
    workloads.register()
    return tmp_path


def answer(entry: str, typed: str) -> tuple[str, str]:
    """The code of what a command is answered, and the command that it is answered with."""
    workload = workloads.of_entry(entry)
    try:
        words = command_line.switched(shlex.split(typed), workload)
        command_line.check_overrides(command_line.overrides(words), workload)
    except Refusal as refused:
        return refused.code, refused.facts.get("command", "")
    except ValueError as refused:
        return str(refused), ""
    return TAKEN, shlex.join(words)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("entry", "typed", "code", "words"), GUESSES, ids=IDS)
def test_a_guess_is_taken_or_answered_by_the_command(
    entry: str, typed: str, code: str, words: str | None
):
    found, command = answer(entry, typed)
    if code == "words.no-such-option":  # which Hydra says
        assert found == TAKEN
        return
    assert found == code
    if code == "words.taken-away":
        return
    if found == TAKEN:
        assert command == words
        return
    line = shlex.split(command)
    variables = [word for word in line[: line.index("python")] if "=" in word]
    start, *rest = line[line.index("python") + 1 :]
    assert (start == entry) == (code != ELSEWHERE)
    assert ("CUDA_VISIBLE_DEVICES" in command) == bool(variables)
    if words is not None:
        assert rest == shlex.split(words)
    again, _ = answer(start, shlex.join(rest))
    assert again == TAKEN
    names = Vocabulary(workloads.of_entry(start))
    assert all(names.has(word.partition("=")[0]) for word in rest if "=" in word)


@pytest.mark.usefixtures("here")
def test_what_is_called_by_no_name_is_said_to_be_left_out():
    with pytest.raises(Refusal) as caught:
        command_line.switched(["--epochs", "3", "--mixup", "0.2"], workloads.of_entry(VISION))
    assert caught.value.facts["unknown"] == ["--mixup 0.2"]


@pytest.mark.usefixtures("here")
def test_a_model_that_was_downloaded_is_not_downloaded_again(here: Path):
    (here / "llama").rename(here / "Qwen3-0.6B")
    words = command_line.switched(["model=Qwen/Qwen3-0.6B"], workloads.of_entry(TUNING))
    assert words == ["engine=trl", "model=hf", "model.path=Qwen3-0.6B"]


@pytest.mark.usefixtures("here")
def test_a_model_in_the_cache_of_the_hub_is_taken(here: Path, monkeypatch: pytest.MonkeyPatch):
    config = here / "llama" / "config.json"
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: str(config))
    words = command_line.switched(["model=Qwen/Qwen3-0.6B"], workloads.of_entry(TUNING))
    assert words == ["engine=trl", "model=hf", f"model.path={here / 'llama'}"]


def test_other_names_are_no_keys_and_other_values_mean_options():
    vocabularies = [Vocabulary(workload) for workload in workloads.WORKLOADS]
    options = dict[str, set[str]]()
    for names in vocabularies:
        assert {*names.elsewhere} & {*names.types} == set()
        for key in names.meant:
            options.setdefault(key, set()).update(names.options_of(key))
    for names in vocabularies:
        for key, values in names.meant.items():
            assert not options[key] or {*values.values()} <= options[key], key


# what is typed after `multicard`, and the commands that it is answered with
COMMANDS = [
    ("train", ["vision", "tune"]),
    ("train model=./llama", ["tune"]),
    ("train photos", ["vision --"]),
    ("finetune chats.jsonl", ["tune dataset=chat dataset.data_files=chats.jsonl"]),
    ("run train.py --lr 0.1", ["script script=train.py args.lr=0.1"]),
    ("train.py", ["script script=train.py"]),
    ("photos/", ["vision dataset=images dataset.root=photos/"]),
    ("sweep gpus=1,2", ["vision -m gpus=1,2", "tune -m gpus=1,2"]),
    ("sbatch train.py", ["script hydra/launcher=submitit_slurm script=train.py"]),
    ("plot", ["report", "figure"]),
    ("show", ["report", "list"]),
    ("ls", ["list"]),
    ("diff a b", ["compare a b"]),
    ("benchmark", ["evidence"]),
    ("fig16", ["figure fig16"]),
    ("jobs.yaml", ["plan jobs.yaml"]),
    ("resnet50", ["vision model=resnet50"]),
    ("bets", ["best"]),
    ("xyzzy", []),
]
FILES = {"vision": VISION, "tune": TUNING, "script": SCRIPT}


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(("typed", "commands"), COMMANDS, ids=[typed for typed, _ in COMMANDS])
def test_a_command_is_known_by_its_meaning(
    typed: str, commands: list[str], capsys: pytest.CaptureFixture[str]
):
    assert main(shlex.split(typed)) == 1
    said = find(capsys.readouterr().err, "command.unknown", name=typed.split(maxsplit=1)[0])
    assert said.facts["near"] == [command.split()[0] for command in commands]
    for line, command in zip(said.facts["commands"], commands, strict=True):
        name, *rest = command.split()
        assert line.startswith(f"python {FILES.get(name, '-m ')}")
        if rest and rest != ["--"]:
            assert line.endswith(" ".join(rest))


@pytest.mark.parametrize("words", [["help"], ["-h"], ["version"], ["-V"], []])
def test_words_for_help_and_version_are_taken(words: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(words) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        (["plot"], ["python -m analysis report", "python -m analysis figure"]),
        (["train"], ["python train_vision.py", "python tune_llm.py"]),
    ],
)
def test_commands_of_the_analysis_are_known_by_their_meaning_too(
    words: list[str], commands: list[str], capsys: pytest.CaptureFixture[str]
):
    assert analysis.main(words) == 1
    assert find(capsys.readouterr().err, "command.unknown").facts["commands"] == commands


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        (["table", "2"], ["table table2", "figure image_size"]),
        (["figure", "fig16"], ["figure peak_memory"]),
        (["figure", "7"], ["figure loaders"]),
    ],
)
def test_tables_and_figures_are_known_by_their_numbers(
    words: list[str], commands: list[str], capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit):
        analysis.main(words)
    near = find(capsys.readouterr().err, "analysis.by-number").facts["near"]
    assert near == [f"python -m analysis {command}" for command in commands]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("words", [["report"], ["best"], ["list"]])
def test_before_the_first_run_it_is_said_how_to_measure_one(
    words: list[str], capsys: pytest.CaptureFixture[str]
):
    assert analysis.main(words) == 1
    find(capsys.readouterr().err, "runs.none-yet")


@pytest.mark.parametrize("typed", ["photos", "name=photos", "multirun/photos"])
def test_a_sweep_is_known_by_its_name_beside_the_photographs_of_that_name(typed: str, here: Path):
    (here / "multirun" / "photos").mkdir(parents=True)  # photos/ has photographs
    assert folder_of_runs(typed) == Path("multirun/photos")
    (here / "photos").rename(here / "elsewhere")
    assert folder_of_runs(typed) == Path("multirun/photos")


def test_a_folder_with_runs_comes_before_a_sweep_of_its_name(here: Path):
    (here / "multirun" / "photos").mkdir(parents=True)
    (here / "photos" / "a_run").mkdir()
    (here / "photos" / "a_run" / "result.json").touch()
    assert folder_of_runs("photos") == Path("photos")


@pytest.mark.parametrize("typed", ["..", "../flat", "flat", "."])
def test_a_path_is_no_name_of_a_sweep(typed: str, here: Path, monkeypatch: pytest.MonkeyPatch):
    (here / "multirun" / "photos").mkdir(parents=True)
    monkeypatch.chdir(here / "photos")
    assert folder_of_runs(typed) == Path(typed)
