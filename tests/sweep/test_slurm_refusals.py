"""What sbatch says, as one line with the key, and jobs that it submitted without an answer;
without a SLURM.
"""

from pathlib import Path
from typing import Any

import pytest

from multicard.config.job import Resources
from multicard.machine import slurm
from multicard.records import run_folder
from multicard.sweep import slurm_refusals, slurm_submit, slurm_wait
from tests.conftest import Called
from tests.helpers.messages import find, remedies, says, told

ONE = Resources(nodes=1, gpus=2, cpus=4, memory_gb=None, time_min=60, exclusive=False)
POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"

# What SLURM's own words are about: the code, the key, and facts
REASONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Invalid partition name specified": ("slurm.refuses", "hydra.launcher.partition", {"value": "long"}),
    "User's group not permitted to use this partition": (
        "slurm.refuses", "hydra.launcher.partition", {"value": "long"}
    ),
    "Requested node configuration is not available": ("slurm.no-node", "gpus", {"asked": ONE.in_words()}),
    "Requested time limit is invalid (missing or exceeds some limit)": ("slurm.refuses", "time_min", {"value": 60}),
    "Invalid account or account/partition combination specified": (
        "slurm.refuses", "hydra.launcher.account", {"value": None}
    ),
    "Invalid qos specification": ("slurm.refuses", "hydra.launcher.qos", {}),
    "Invalid feature specification": ("slurm.refuses", "hydra.launcher.constraint", {}),
    "Invalid generic resource (gres) specification": ("slurm.refuses", "hydra.launcher.gpu_type", {}),
    POLICY: ("slurm.policy", "hydra/launcher", {}),
    "Unable to contact slurm controller (connect failure)": ("slurm.unreached", "hydra/launcher", {}),
    "Connection refused": ("slurm.unreached", "hydra/launcher", {}),
    "Could not establish a configuration source": ("slurm.no-cluster", "hydra/launcher", {}),
    "Access denied": ("slurm.refuses-job", "hydra/launcher", {}),
}  # fmt: skip


@pytest.mark.parametrize("reason", REASONS)
def test_the_key_is_found_by_slurms_own_words_and_all_words_are_kept(reason: str):
    code, key, facts = REASONS[reason]
    # names what it is not about, too
    site = "Your account has no partition for this QOS; ask help@site"
    said = (
        f"sbatch: error: {site}\nsbatch: See the handbook\nsbatch: error: Batch job submission"
        f" failed: {reason}\n"
    )
    refusal = slurm_refusals.explain(said, ONE, {"partition": "long"})
    assert (refusal.code, refusal.key, refusal.facts | facts) == (code, key, refusal.facts), reason
    assert refusal.facts["reason"] == f"{site}; See the handbook; {reason}"
    assert not slurm_refusals.is_unanswered(said)


def test_a_refused_option_is_named_with_its_value():
    said = "sbatch: unrecognized option '--comet=x'\nTry \"sbatch --help\" for more information\n"
    refusal = slurm_refusals.explain(said, ONE, {"comet": "x"})
    assert (refusal.code, refusal.facts["option"], refusal.facts["value"]) == (
        "slurm.refuses-option",
        "comet",
        "x",
    )
    assert refusal.facts["reason"] == "unrecognized option '--comet=x'"
    assert remedies(refusal) == ["sbatch --help"]


UNANSWERED = [
    "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation",
    "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received",
    "sbatch: error: Batch job submission failed: Connection reset by peer",
    "",  # of an sbatch that was killed
]
CELL = ("device=cpu", "hydra/launcher=submitit_slurm")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put shell scripts in the place of SLURM's commands."""

    def put(**scripts: str) -> Path:
        for name, script in {"srun": "", **scripts}.items():
            path = tmp_path / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
        return tmp_path

    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setattr(slurm_submit, "LOOKS_FOR_S", 0.0)
    monkeypatch.setattr(slurm_submit, "pause", lambda _: None)
    return put


@pytest.mark.parametrize("said", UNANSWERED)
def test_a_job_that_was_submitted_without_an_answer_is_found_by_its_name(
    said: str, programs: Any, tmp_path: Path, called: Called, monkeypatch: pytest.MonkeyPatch
):
    """And waited for: no other is submitted."""
    programs(
        sbatch=f"""echo x >>{tmp_path}/submissions; printf '%s' "{said}" >&2; exit 1""",
        squeue="""case "$*" in *" -n "*) echo 77 ;; *) echo '77|RUNNING|n1|None' ;; esac""",
    )
    waited = []
    monkeypatch.setattr(slurm_wait, "wait", lambda _, jobs, __: waited.append(jobs))
    for _ in range(2):
        called("-m", "gpus=1", *CELL, f"hydra.sweep.dir={tmp_path / 'sweep'}")
    assert [list(jobs.values()) for jobs in waited] == [["77"], ["77"]]
    assert (tmp_path / "submissions").read_text() == "x\n"


@pytest.mark.parametrize("queue", ["exit 1", "exit 0"], ids=["silent", "empty"])
def test_a_job_of_which_nobody_knows_yet_keeps_its_files_and_is_asked_for_again(
    queue: str, programs: Any, tmp_path: Path, called: Called
):
    programs(sbatch=f"echo '{UNANSWERED[0]}' >&2; exit 1", squeue=queue)
    code, printed = called(
        "-m", "gpus=1", "seed=1,2", *CELL, f"hydra.sweep.dir={tmp_path / 'sweep'}"
    )
    said = find(printed, "slurm.unanswered", key="hydra/launcher")
    folder = tmp_path / "sweep" / ".submitit"
    (file,) = folder.glob("*.json")
    assert code == 1 and file.stem == said.facts["job_name"]
    submission = run_folder.read_json(file)
    assert submission is not None and (submission["job"], len(submission["cells"])) == (None, 2)
    assert len([*folder.glob("*.pkl")]) == 2  # what the job will run if it comes


def test_a_refused_array_leaves_the_files_of_an_earlier_one(
    programs: Any, tmp_path: Path, called: Called
):
    """Of a command that was killed between sbatch and the names: its job may be queued still."""
    programs(
        sbatch="echo 'sbatch: error: Batch job submission failed: Access denied' >&2; exit 1",
        squeue="",
    )
    folder = tmp_path / "sweep" / ".submitit"
    folder.mkdir(parents=True, mode=0o700)
    earlier = folder / f"{'ab' * 16}.pkl"
    earlier.touch()
    code, printed = called(
        "-m", "gpus=1", "seed=1,2", *CELL, f"hydra.sweep.dir={tmp_path / 'sweep'}"
    )
    assert code == 1 and says(printed, "slurm.refuses-job", reason="Access denied")
    assert [*folder.glob("*.pkl")] == [earlier]


def test_the_largest_array_is_asked_of_slurm(programs: Any):
    programs(scontrol="echo 'MaxArraySize            = 1001'")
    assert slurm.max_array_size() == 1001
    programs(scontrol="exit 1")
    assert slurm.max_array_size() is None


@pytest.mark.parametrize(
    ("most", "sizes"), [(1001, [7]), (7, [7]), (4, [3, 4]), (2, [1, 2, 2, 2]), (0, [1] * 7)]
)
def test_an_array_that_is_too_large_is_split_and_keeps_its_limit_of_jobs_at_a_time(
    most: int, sizes: list[int], programs: Any, called: Called, tmp_path: Path
):
    programs(
        scontrol=f"echo 'MaxArraySize = {most}'",
        squeue="",
        sbatch=f"grep -o 'array=.*' $1 >>{tmp_path}/arrays; echo 'sbatch: error: no' >&2; exit 1",
    )
    folder = tmp_path / "sweep"
    words = (
        "-m",
        "seed=1,2,3,4,5,6,7",
        *CELL,
        f"hydra.sweep.dir={folder}",
        "hydra.launcher.array_parallelism=4",
    )
    code, printed = called(*words, "dry_run=true")
    rows = [line.split()[0] for line in printed.splitlines() if " node, " in line]
    assert code == 0 and rows == [str(size) for size in sizes]
    called(*words)
    if most > 1:
        asked = [
            line.strip("'").split("%") for line in (tmp_path / "arrays").read_text().splitlines()
        ]
        assert sum(int(parallel) for _, parallel in asked) <= 4
    assert told(printed)
