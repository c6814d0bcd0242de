"""A site's defaults: who sets what, what wins, and what such a file cannot set."""

from pathlib import Path

import pytest

from multicard.cli import site_defaults
from multicard.llm.workload import WORKLOAD as LLM
from multicard.vision.workload import WORKLOAD as VISION
from tests.conftest import SMALL, Called
from tests.helpers.messages import find, refused

SLURM = "hydra/launcher=submitit_slurm"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "site.yaml"
    monkeypatch.setenv(site_defaults.VARIABLE, str(file))
    return file


def test_a_launchers_keys_are_of_commands_that_use_it(site: Path):
    site.write_text(
        "hydra.launcher.account: project42\n"
        "hydra:\n  launcher:\n    partition: gpu\n"
        "    additional_parameters: {reservation: mine}\n"
        "time_min: 120\ntracker: {mode: disabled}\n"
    )
    others = ["time_min=120", 'tracker.mode="disabled"']
    assert site_defaults.words_of_site(["gpus=1"], VISION) == others
    assert site_defaults.words_of_site(["gpus=1", SLURM], VISION) == [
        'hydra.launcher.account="project42"',
        'hydra.launcher.partition="gpu"',
        'hydra.launcher.additional_parameters={reservation: "mine"}',
        *others,
    ]


def test_a_time_is_passed_on_as_it_is_written(site: Path):
    """YAML 1.1 reads 2:00:00 as 7200, which would be minutes."""
    site.write_text("time_min: 2:00:00\ncpus_per_gpu: 1:30.5\nmemory_gb: 1.5\n")
    words = ['time_min="2:00:00"', 'cpus_per_gpu="1:30.5"', "memory_gb=1.5"]
    assert site_defaults.words_of_site([], VISION) == words


def test_what_is_typed_wins(site: Path):
    site.write_text("hydra.launcher.account: project42\ntime_min: 120\nhydra/launcher: basic\n")
    typed = [SLURM, "time_min=5"]
    assert site_defaults.words_of_site(typed, LLM) == ['hydra.launcher.account="project42"']


def test_a_site_may_choose_the_launcher(site: Path):
    site.write_text("hydra/launcher: submitit_slurm\nhydra.launcher.qos: long\n")
    assert site_defaults.words_of_site([], VISION) == [
        'hydra/launcher="submitit_slurm"',
        'hydra.launcher.qos="long"',
    ]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("precision: fp16\n", "site.key"),
        ("rerun: true\n", "site.key"),
        ("partition: gpu\n", "site.key-called-otherwise"),
        ("time_mn: 120\n", "site.unknown-key"),
        ("hydra/launcher: slurm\n", "site.launcher"),
        ("hydra/launcher: [local]\n", "site.launcher"),
        ("- a list\n", "site.no-mapping"),
        ("a: [\n", "site.unread"),
        ("time_min: 60\ntime_min: 120\n", "site.unread"),
        (b"\xff\xfe\x00", "site.unread"),
    ],
)
def test_what_a_site_cannot_set_is_refused(site: Path, content: str | bytes, code: str):
    site.write_bytes(content if isinstance(content, bytes) else content.encode())
    with refused(code):
        site_defaults.words_of_site([], VISION)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("partition", "hydra.launcher.partition"),
        ("queue", "hydra.launcher.partition"),
        ("project", "hydra.launcher.account"),
        ("launcher", "hydra/launcher"),
        ("walltime", "time_min"),
        ("mem", "memory_gb"),
    ],
)
def test_a_site_is_told_the_name_of_a_key_here(site: Path, name: str, key: str):
    site.write_text(f"{name}: 7\n")
    with refused("site.key-called-otherwise", key=name, near=key):
        site_defaults.words_of_site([], VISION)


def test_a_key_that_is_misspelt_in_the_file_is_answered_by_the_nearest(site: Path):
    site.write_text("hydra:\n  launcher:\n    partition: gpu\ntime_mn: 120\n")
    with refused("site.unknown-key", key="time_mn", near=["time_min"]):
        site_defaults.words_of_site([], VISION)


def test_without_a_file_nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv(site_defaults.VARIABLE, "")
    assert site_defaults.words_of_site([SLURM], VISION) == []
    monkeypatch.delenv(site_defaults.VARIABLE)
    monkeypatch.setattr(site_defaults, "FILES", (tmp_path / "absent.yaml",))
    assert site_defaults.words_of_site([SLURM], VISION) == []


@pytest.mark.usefixtures("processes")
def test_a_command_says_what_its_site_sets(site: Path, called: Called, tmp_path: Path):
    site.write_text("hydra.launcher.account: project42\ntime_min: 7\n")
    line = ["-m", *SMALL, SLURM, "gpus=1", "dry_run=true", f"hydra.sweep.dir={tmp_path / 'runs'}"]
    code, printed = called(*line)
    assert code == 0, printed
    assert find(printed, "site.defaults", file=str(site))
    assert "7 min" in printed
