"""Options of a site's sbatch: merged with what a job asks for however they are spelled,
or refused by name.
"""

from typing import Any

import pytest

from multicard.config.job import Resources
from multicard.machine import sbatch
from multicard.messages import Refusal
from multicard.sweep import slurm_options
from tests.conftest import Called
from tests.helpers.messages import find, refused, remedies

ONE = Resources(nodes=1, gpus=2, cpus=4, memory_gb=None, time_min=60, exclusive=False)
TWO = Resources(nodes=2, gpus=2, cpus=4, memory_gb=64, time_min=60, exclusive=True)
CPU = Resources(nodes=1, gpus=0, cpus=4, memory_gb=None, time_min=60, exclusive=False)
USUAL = {"gpus-per-node": "2", "requeue": True}
ADDITIONAL = "hydra.launcher.additional_parameters"


def flags(
    request: Resources = ONE, launcher: dict[str, Any] | None = None, **additional: Any
) -> dict[str, Any]:
    return slurm_options.flags(request, (launcher or {}) | {"additional_parameters": additional})


SPELLINGS = {
    "gpus-per-node": [
        "gpus-per-node",
        "gpus_per_node",
        "--gpus-per-node",
        "gpus-per-n",
        "num_gpus",
    ],
    "ntasks-per-node": ["ntasks_per_node", "tasks_per_node", "ntasks-per-n"],
    "nodes": ["N", "nodes", "--nodes"],
    "ntasks": ["n", "ntasks"],
    "gpus": ["G", "gpus"],
    "partition": ["p", "--partition", "part"],
    "time": ["t", "time", "timeout_min"],
    "job-name": ["J", "job_name", "name"],
    "mem": ["mem", "mem_gb", "memory_gb"],
    "no-requeue": ["no_requeue", "no-requeue"],
    "container-image": ["container-image", "container_image"],  # of a plugin of the site
    "gpus-per": ["gpus-per"],  # begins several
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_an_option_is_known_in_each_spelling(name: str):
    assert {spelling: sbatch.name_of(spelling) for spelling in SPELLINGS[name]} == dict.fromkeys(
        SPELLINGS[name], name
    )


SAME = [  # what says the same as the request changes nothing
    {"gpus-per-node": 2},
    {"gpus_per_node": "2"},
    {"gpus-per-node": "gpu:2"},
    {"G": 2},
    {"gpus-per-task": 2},
    {"N": 1, "n": 1, "ntasks_per_node": 1},
    {"c": 4},
    {"cpus-per-gpu": 2},
    {"t": 60},
    {"time": "1:00:00"},
    {"exclusive": False},
    {"requeue": True},
    {"reservation": None, "hold": False},
]


@pytest.mark.parametrize("additional", SAME)
def test_what_says_the_same_as_a_key_is_merged(additional: dict[str, Any]):
    assert flags(**additional) == USUAL


OTHER = [  # our key, and the remedy
    ({"gpus-per-node": 4}, "gpus", "gpus=4"),
    ({"gres": "gpu:h100:4"}, "gpus", "gpus=4"),
    ({"G": "h100:4"}, "gpus", "gpus=4"),
    ({"--gpus_per_task": 1}, "gpus", "gpus=1"),
    ({"tres-per-task": "gres/gpu:4"}, "gpus", "gpus=N"),
    ({"nodes": 2}, "nodes", "nodes=2"),
    ({"N": "1-2"}, "nodes", "nodes=N"),
    ({"n": 4}, "gpus", "gpus=4"),
    ({"ntasks_per_node": 2}, "gpus", "gpus=2"),
    ({"cpus_per_task": 8}, "cpus_per_gpu", "cpus_per_gpu=4"),
    ({"c": 7}, "cpus_per_gpu", "cpus_per_gpu=N"),
    ({"cpus-per-gpu": 8}, "cpus_per_gpu", "cpus_per_gpu=8"),
    ({"t": "1-0"}, "time_min", "time_min=1440"),
    ({"time_min": 90}, "time_min", "time_min=90"),
    ({"timeout_min": 90}, "time_min", "time_min=90"),
    ({"exclusive": True}, "exclusive", "exclusive=true"),
]


@pytest.mark.parametrize(("additional", "key", "remedy"), OTHER)
def test_what_contradicts_a_key_is_refused_with_the_key(
    additional: dict[str, Any], key: str, remedy: str
):
    ((typed, value),) = additional.items()
    with refused(
        "slurm.contradicts", key=ADDITIONAL, option=typed, value=value, instead=key
    ) as caught:
        flags(**additional)
    assert remedies(caught.value) == [remedy]


def test_a_job_of_two_nodes_asks_for_both():
    usual = flags(TWO)
    assert usual == {
        "gpus-per-node": "2",
        "mem": "64GB",
        "exclusive": True,
        "no-kill": True,
        "requeue": True,
    }
    same = {"N": 2, "ntasks": 2, "G": 4, "mem": "64G", "exclusive": True}
    assert flags(TWO, **same) == usual
    for additional in (
        {"mem": "32G"},
        {"mem-per-cpu": "1G"},
        {"exclusive": "user"},
        {"exclusive": False},
        {"G": 2},
    ):
        with refused("slurm.contradicts"):
            flags(TWO, **additional)


def test_memory_of_a_site_counts_where_the_key_is_unset():
    assert flags(mem="64G")["mem"] == "64G"
    assert flags(mem_gb=64)["mem"] == "64G"  # submitit's, in GB
    assert flags(**{"mem-per-gpu": "8G"})["mem-per-gpu"] == "8G"


GPU_TYPES = [  # the launcher's key, additional parameters, and what sbatch is asked for
    ("h100", {}, {"gpus-per-node": "h100:2"}),
    (None, {"gpus-per-node": "h100:2"}, {"gpus-per-node": "h100:2"}),
    (None, {"gpus_per_node": "h100"}, {"gpus-per-node": "h100:2"}),
    (None, {"gres": "gpu:h100:2"}, {"gres": "gpu:h100:2"}),
    (None, {"gres": "gpu:h100"}, {"gres": "gpu:h100:2"}),
    ("h100", {"gres": "gpu"}, {"gres": "gpu:h100:2"}),
    (None, {"gres": "gpu:2,lscratch:100"}, {"gres": "gpu:2,lscratch:100"}),
    (
        "a100_80gb",
        {"gres": "lscratch:100"},
        {"gres": "lscratch:100", "gpus-per-node": "a100_80gb:2"},
    ),
    ("h100", {"G": 2}, {"gpus-per-node": "h100:2"}),
]


@pytest.mark.parametrize(("kind", "additional", "asked"), GPU_TYPES)
def test_a_type_of_gpu_goes_where_the_site_has_it(
    kind: str | None, additional: dict[str, Any], asked: dict[str, str]
):
    assert flags(launcher={"gpu_type": kind}, **additional) == {"requeue": True, **asked}


@pytest.mark.parametrize(
    ("kind", "additional", "code"),
    [
        ("h100:2", {}, "slurm.gpu-type"),
        ("h100", {"gres": "gpu:a100:2"}, "slurm.several-types"),
        (None, {"gres": "gpu:a100:1,gpu:h100:1"}, "slurm.several-types"),
        (None, {"gpus": "a100:1,h100:1"}, "slurm.several-types"),
    ],
)
def test_a_job_has_one_type_of_gpu(kind: str | None, additional: dict[str, Any], code: str):
    with refused(code):
        flags(launcher={"gpu_type": kind}, **additional)


def test_a_job_of_cpu_ranks_asks_for_no_gpu():
    assert flags(CPU, {"gpu_type": "h100"}) == {"requeue": True}
    assert flags(CPU, **{"gpus-per-node": 0}) == {"requeue": True}
    with refused("slurm.contradicts", instead="device"):
        flags(ONE, **{"gpus-per-node": 0})
    with refused("slurm.gpus-of-cpu"):
        flags(CPU, gres="gpu:h100")


VALUES = [
    ({"requeue": False}, {"no-requeue": True}),
    ({"no-requeue": True}, {"no-requeue": True}),
    ({"hold": True, "contiguous": False}, {"requeue": True, "hold": True}),
    ({"nice": True}, {"requeue": True, "nice": True}),
    ({"nice": 10}, {"requeue": True, "nice": 10}),
    ({"kill-on-invalid-dep": True}, {"requeue": True, "kill-on-invalid-dep": "yes"}),
    ({"wait_all_nodes": False}, {"requeue": True, "wait-all-nodes": "0"}),
    ({"mail-type": ["END", "FAIL"]}, {"requeue": True, "mail-type": "END,FAIL"}),
    ({"pyxis-flag": True}, {"requeue": True, "pyxis-flag": True}),
]


@pytest.mark.parametrize(("additional", "expected"), VALUES)
def test_true_and_false_are_the_right_flag(additional: dict[str, Any], expected: dict[str, Any]):
    assert flags(**additional) == {"gpus-per-node": "2"} | expected


@pytest.mark.parametrize(
    ("additional", "code"),
    [
        ({"mail-user": True}, "slurm.needs-value"),
        ({"reservation": False}, "slurm.needs-value"),
        ({"pyxis-flag": False}, "slurm.needs-value"),
        ({"hold": "yes"}, "slurm.flag"),
        ({"exclusive": "true"}, "slurm.flag"),
        ({"nice": "no"}, "slurm.flag"),
        ({"array_parallelism": 4}, "slurm.key-of-launcher"),
        ({"gpu-type": "h100"}, "slurm.key-of-launcher"),
        ({"requeue": 0}, "slurm.flag"),
        ({"comment": "a\nrm -rf"}, "slurm.option-form"),
        ({"comment": {"a": 1}}, "slurm.option-form"),
        ({"p": "a", "partition": "b"}, "slurm.option-twice"),
        *(
            ({name: "x"}, "slurm.option-of-ours")
            for name in ("J", "o", "array", "signal", "parsable", "M", "wrap")
        ),
    ],
)
def test_what_sbatch_would_misread_or_the_command_could_not_follow_is_refused(
    additional: dict[str, Any], code: str
):
    with refused(code, key=ADDITIONAL):
        flags(**additional)


def test_keys_of_the_launcher_and_additional_parameters_are_one():
    assert flags(launcher={"partition": "a"}, p="a")["partition"] == "a"
    assert flags(launcher={"partition": None}, p="a")["partition"] == "a"
    assert flags(launcher={"mail_user": "me"})["mail-user"] == "me"
    with refused("slurm.option-twice", option="p", value="b", other="partition", others_value="a"):
        flags(launcher={"partition": "a"}, p="b")
    with refused("slurm.contradicts", key="hydra.launcher.timeout_min", instead="time_min"):
        flags(launcher={"timeout_min": 30})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90),
        ("90:30", 90.5),
        ("1:30:00", 90),
        ("1-0", 1440),
        ("1-2:30", 1590),
        ("1-2:30:00", 1590),
        ("x", None),
    ],
)
def test_time_limits_are_read_as_sbatch_reads_them(text: str, expected: float | None):
    assert sbatch.minutes(text) == expected


def test_a_dry_run_shows_what_the_site_adds(called: Called):
    words = (
        "gpus=2",
        "device=cuda",
        "hydra/launcher=submitit_slurm",
        "dry_run=true",
        "hydra.launcher.gpu_type=h100",
    )
    code, printed = called(*words, f"{ADDITIONAL}={{p: long,requeue: false}}")
    shown = {line.strip() for line in printed.splitlines()}
    assert code == 0 and {"gpus-per-node=h100:2", "partition=long", "--no-requeue"} <= shown


def test_a_contradiction_is_one_line_before_anything_is_submitted(called: Called):
    words = ("device=cuda", "hydra/launcher=submitit_slurm", "dry_run=true")
    code, printed = called("-m", "gpus=1,2", *words, f"{ADDITIONAL}={{gpus-per-node: 2}}")
    assert code == 1 and find(printed, "slurm.contradicts", key=ADDITIONAL).facts["own"] == 1


def test_options_of_ours_say_why_in_full():
    """Each has a way out in its sentence, or is to be left out."""
    for name in slurm_options.NEVER:
        with pytest.raises(Refusal) as caught:
            flags(**{name: "x"})
        assert (
            remedies(caught.value)
            or "leave it out" in caught.value.message.sentence
            or name == "clusters"
        )
