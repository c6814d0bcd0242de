"""How ranks are started: what they are forked with, and the environment that they get."""

import multiprocessing.forkserver
import os
import subprocess
import sys
import time
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from threading import Thread

import psutil
import pytest

from multicard.config.placement import Placement
from multicard.llm import workload as llm
from multicard.ranks import elastic
from multicard.ranks.failures import Failure, end, interruptible
from multicard.run import controller as run
from multicard.run.workload import Workload
from multicard.vision.workload import WORKLOAD
from tests.conftest import PATIENCE_S, ROOT, SMALL, as_dict, composed, free_port, ok, warm_up
from tests.helpers.launching import launch, two_nodes

pytestmark = pytest.mark.usefixtures("processes")

# As if there were a GPU, as far as torch's Python goes: ends at the first import that starts CUDA,
# with its name
IMPORT_ON_A_GPU = """
import os, sys
import torch
def start(*_):
    print(module, flush=True)
    os._exit(3)
torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: 1
torch.cuda._lazy_init = torch._C._cuda_init = torch._C._cuda_getDeviceCount = start
torch.cuda.current_device = torch.cuda.get_device_properties = torch.cuda.get_device_capability = start
for module in sys.argv[1:]:
    __import__(module)
"""


def test_importing_what_cuda_ranks_are_forked_with_does_not_start_cuda():
    """Importing torchtune does, by way of
    torch.sparse._triton_ops: so CUDA ranks are not forked with it.
    """
    modules = [*WORKLOAD.cuda_preload, *llm.WORKLOAD.cuda_preload, "torch.sparse._triton_ops"]
    line = [sys.executable, "-c", IMPORT_ON_A_GPU, *modules]
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT, timeout=300)
    assert (done.returncode, done.stdout.strip()) == (3, modules[-1]), done.stderr


def test_ranks_on_cuda_are_forked_unless_their_server_has_started_it():
    warm_up()  # with torchtune, which asks whether CUDA is there
    assert (elastic._start_method("cpu"), elastic._start_method("cuda")) == ("forkserver", "spawn")
    script = (
        "from multicard.ranks import elastic\nelastic.warm_up('cuda',"
        " ['torch'])\nprint(elastic._start_method('cuda'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "forkserver"


def test_cuda_counts_as_nvml_does_before_a_rank_begins(monkeypatch: pytest.MonkeyPatch):
    """Binding a rank to its GPU's NUMA node starts CUDA, before the rank's own code runs."""
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    script = """
import multiprocessing, os
from multicard.ranks import elastic
from multicard.ranks.failures import Failure, end, interruptible
elastic.warm_up("cuda", [])
for method in ("forkserver", "spawn"):
    process = multiprocessing.get_context(method).Process(target=os.system, args=("echo $CUDA_DEVICE_ORDER",))
    process.start()
    process.join()
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split() == ["PCI_BUS_ID"] * 2


def test_what_compiles_for_a_rank_is_the_runs_own_load(tmp_path: Path):
    """Inductor's processes end before their rank: the CPU
    time of orphans would be counted as others'.
    """
    warm_up()
    server = psutil.Process(multiprocessing.forkserver._forkserver._forkserver_pid)  # pyright: ignore[reportAttributeAccessIssue]
    before_s = sum(server.cpu_times()[2:4])  # of children that ended
    assert launch("compile_in_workers", tmp_path, folder=tmp_path) is None
    spent_s = float((tmp_path / "cpu_s.txt").read_text())
    assert sum(server.cpu_times()[2:4]) - before_s > spent_s - 0.1


def test_ranks_get_the_variables_that_are_known_after_their_server_has_started(
    tmp_path: Path, monkeypatch
):
    warm_up()
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCH_WARM_POOL"):
        monkeypatch.delenv(name, raising=False)
    assert launch("leave_environment", tmp_path, folder=tmp_path) is None
    lines = (tmp_path / "environment.txt").read_text().splitlines()
    assert {"GLOO_SOCKET_IFNAME=lo", "NCCL_SOCKET_IFNAME==lo", "TORCH_WARM_POOL=0"} <= set(lines)
    monkeypatch.setattr(elastic.environment, "cores", lambda: 64)
    each = [
        elastic._variables(Placement("cuda", "nccl", ranks, False), 1)[elastic.COMPILERS]
        for ranks in (1, 8, 100)
    ]
    # processes of Inductor: its own limit, and the cores over the ranks
    assert each == ["32", "8", "1"]
    several = elastic._variables(Placement("cuda", "nccl", 1, False, nodes=2), 2)
    # what connects nodes is for the site to say
    assert not {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"} & {*several}


TUNING = ("gpus=2", "max_steps=1", "skip_steps=0", "tracker.mode=disabled", "device=cpu")


@pytest.mark.parametrize(
    ("workload", "work", "words"),
    [
        (WORKLOAD, "tests.helpers.rank_work:train_and_leave_listeners", (*SMALL, "gpus=2")),
        (llm.WORKLOAD, "tests.helpers.rank_work_llm:tune_and_leave_listeners", TUNING),
    ],
    ids=["vision", "tuning"],
)
def test_nothing_of_a_local_run_listens_beyond_this_machine(
    workload: Workload,
    work: str,
    words: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    warm_up()
    cfg = composed(*words, entry=Path(workload.entry).stem)
    ok(as_dict(run.measure(replace(workload, work=work), cfg, tmp_path / "run", keep_refused=True)))
    addresses = (tmp_path / "run" / "listeners.txt").read_text().split()
    assert len(addresses) >= 3  # the agent's store, and gloo of each rank
    assert [address for address in addresses if not ip_address(address).is_loopback] == []


# A command of its own: work, folder, and node and port of two nodes, where it is one of them
COMMAND = """
import sys
from pathlib import Path
from multicard.ranks import elastic
from tests.helpers.launching import launch, two_nodes
if __name__ == "__main__":
    work, folder, *where = sys.argv[1:]
    elastic.warm_up("cpu", ["torch", "tests.helpers.rank_work"])
    allocation = two_nodes(*map(int, where)) if where else None
    sys.exit(launch(work, Path(folder), folder=Path(folder), allocation=allocation) is not None)
"""


@pytest.mark.parametrize(
    ("chosen", "spins"),
    [
        ({}, str(elastic.SPIN_COUNT)),
        ({"OMP_NUM_THREADS": "1"}, str(elastic.SPIN_COUNT)),  # says nothing of how threads wait
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "active"}, None),
    ],
)
def test_threads_of_cpu_ranks_spin_briefly_unless_the_user_chose(
    monkeypatch: pytest.MonkeyPatch, chosen: dict[str, str], spins: str | None
):
    monkeypatch.setattr(os, "environ", chosen)
    elastic.spin_briefly()
    assert os.environ.get("GOMP_SPINCOUNT") == spins


def test_openmp_of_a_rank_finds_how_long_to_spin_as_it_is_loaded(tmp_path: Path):
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in elastic.OPENMP_WAIT_VARIABLES
    }
    subprocess.run(
        [sys.executable, "-c", COMMAND, "leaves_spins", str(tmp_path)],
        cwd=ROOT,
        env=environment,
        check=True,
    )
    assert (tmp_path / "spins.txt").read_text() == str(elastic.SPIN_COUNT)


def test_ranks_of_two_nodes_meet_at_an_address_of_node_0(tmp_path: Path):
    """The second node is another process of this machine."""
    warm_up()
    port = free_port(14_000)
    line = [sys.executable, "-c", COMMAND, "leave_listeners", str(tmp_path), "1", str(port)]
    second = subprocess.Popen(line, cwd=ROOT)
    try:
        assert (
            launch("leave_listeners", tmp_path, folder=tmp_path, allocation=two_nodes(0, port))
            is None
        )
        assert second.wait(PATIENCE_S) == 0
    finally:
        second.kill()
        second.wait()
    addresses = (tmp_path / "listeners.txt").read_text().split()
    assert len(addresses) >= 3 and "127.0.0.1" in addresses
    assert [address for address in addresses if ip_address(address).is_unspecified] == []


def test_a_node_that_waits_for_another_can_be_interrupted(tmp_path: Path):
    warm_up()
    lost = Failure("node", "node n2 was lost", host="n2")
    with interruptible():
        Thread(target=end_once_it_listens, args=(lost, listeners()), daemon=True).start()
        assert (
            launch("leave_listeners", tmp_path, folder=tmp_path, allocation=two_nodes(0, 0)) == lost
        )


def end_once_it_listens(failure: Failure, of_others: set[tuple[str, int]]) -> None:
    """End the run as the loss of a node does, once node 0 listens for the others;
    earlier tests may listen still.
    """
    while listeners() <= of_others:
        time.sleep(0.01)
    end(failure)


def listeners() -> set[tuple[str, int]]:
    """The addresses at which this process waits for connections."""
    sockets = psutil.Process().net_connections("tcp")
    return {tuple(one.laddr) for one in sockets if one.status == psutil.CONN_LISTEN}
