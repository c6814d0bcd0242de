"""How cells share one machine."""

import json
import re

from multicard.sweep import local
from multicard.sweep.local import Free, Taken
from tests.conftest import SMALL, command, typed


def test_gpus_are_given_to_one_cell_each_and_cores_in_proportion():
    whole = Free(["a", "b", "c", "d"], list(range(16)))
    free = Free(list(whole.gpus), list(whole.cpus))
    one, two = typed("gpus=1", "exclusive=false"), typed("gpus=2", "exclusive=false")
    first, second, third = local.take(two, free, whole), local.take(one, free, whole), local.take(two, free, whole)
    assert first == Taken(("a", "b"), tuple(range(8)))
    assert second == Taken(("c",), tuple(range(8, 12)))
    assert third is None
    local.give_back(first, free)
    assert local.take(two, free, whole) == first


def test_cpu_ranks_take_cores():
    whole = Free([], [0, 1, 2, 3])
    free = Free([], [0, 1, 2, 3])
    config = typed("gpus=1", "cpus_per_gpu=2", "exclusive=false")
    assert [local.take(config, free, whole) for _ in range(3)] == [Taken(None, (0, 1)), Taken(None, (2, 3)), None]


def test_a_cell_is_alone_unless_neighbours_are_allowed_and_the_greedy_get_all_there_is():
    whole = Free(["a", "b"], [0, 1])
    free = Free(["a", "b"], [0, 1])
    assert local.take(typed("gpus=1"), free, whole) == Taken(("a", "b"), (0, 1))
    assert local.take(typed("gpus=1"), free, whole) is None
    assert local.take(typed("gpus=9", "exclusive=false"), Free(["a", "b"], [0, 1]), whole) == Taken(("a", "b"), (0, 1))


def test_a_sweep_is_packed_and_each_cell_keeps_to_its_cores(tmp_path):
    words = ["-m", *SMALL, "hydra/launcher=submitit_local", f"hydra.sweep.dir={tmp_path}", "cpus_per_gpu=1"]
    done = command(*words, "exclusive=false", "seed=1,2", "precision=fp32,tf32")
    assert done.returncode == 1, done.stdout + done.stderr
    results = [json.loads(path.read_text()) for path in tmp_path.glob("*/result.json")]
    assert sorted(result["status"] for result in results) == ["ok", "ok", "refused", "refused"]
    machines = [json.loads(path.read_text()) for path in tmp_path.glob("*/environment.json")]
    assert len(machines) == 2
    assert all(re.fullmatch(r"\d+", machine["ranks"][0]["cpus"]) for machine in machines)
    again = command(*words, "exclusive=false", "seed=1,2")
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.count("measured before (ok)") == 2
