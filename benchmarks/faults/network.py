"""No network: a namespace in which only the loopback is up; servers that say nothing; strangers on open ports."""

import socket
import subprocess
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psutil

from benchmarks.faults.fault import RUN, Fault, Trial
from benchmarks.faults.points import held, root, then_release

LOOPBACK = "ip link set lo up"
WITHIN_S = 15.0
SILENT_PORT = 19_999
KEYS = {"HF_HOME": "/nonexistent/hub", "WANDB_API_KEY": "0" * 40}
SILENT = KEYS | dict.fromkeys(("http_proxy", "https_proxy", "WANDB_BASE_URL"), f"http://127.0.0.1:{SILENT_PORT}")
PICKLE = b"\x80\x04cposix\nsystem\n(S'true'\ntR."
NO_ROUTE = ("unshare", "--net", "sh", "-c", f'{LOOPBACK}; exec "$@"', "sh")
TUNING = ("hydra.run.dir={sweep}", "max_steps=2", "skip_steps=0", "tracker.mode=disabled")


def silent_server(trial: Trial) -> None:
    """A socket that listens and accepts nothing: the kernel takes the connections."""
    server = trial.after.enter_context(socket.create_server(("127.0.0.1", SILENT_PORT)))
    server.listen(16)


def _namespace() -> str:
    if root():
        return root()
    done = subprocess.run([*NO_ROUTE, "true"], capture_output=True, check=False)
    return "" if done.returncode == 0 else "needs network namespaces"


_OFFLINE = Fault(
    "",
    "",
    program=("train_vision.py",),
    statuses=(),
    ends=None,
    within_s=WITHIN_S,
    lines=1,
)
_MNIST = replace(
    _OFFLINE,
    words=(*RUN, "dataset=mnist", "dataset.image_size=32", "dataset.root={trial}/mnist", "dataset.download=true"),
    says=r"^refused: dataset\.download=true: ",
)
_HUB = replace(
    _OFFLINE,
    program=("tune_llm.py",),
    words=(*TUNING, "dataset=samsum"),
    says=r"^refused: dataset\..*dataset\.data_files",
)
_WANDB = replace(
    _OFFLINE,
    words=(*RUN, "tracker.mode=online"),
    says=r"tracker\.mode=online: .*tracker\.mode=offline",
    lines=None,
    statuses=None,
)


def open_ports(trial: Trial) -> list[tuple[str, int]]:
    """Address and port of every TCP socket on which the command listens."""
    pids = {process.pid for process in trial.family() if process.name().startswith("python")}  # not srun's own
    sockets: list[Any] = psutil.net_connections("tcp")
    listening = (socket for socket in sockets if socket.status == psutil.CONN_LISTEN and socket.pid in pids)
    return [(connection.laddr.ip, connection.laddr.port) for connection in listening]


def stranger(trial: Trial) -> None:
    """Connect to every port of the command and send what would run a command if it was unpickled."""
    ports = open_ports(trial)
    (trial.folder / "ports").write_text("\n".join(f"{ip} {port}" for ip, port in ports))
    for ip, port in ports:
        with suppress(OSError), socket.create_connection((ip, port), timeout=5) as connection:
            connection.sendall(PICKLE * 100)


def listens_elsewhere(trial: Trial) -> str | None:
    ports = (trial.folder / "ports").read_text().splitlines()
    others = [line for line in ports if not line.startswith(("127.", "::1 ", "::ffff:127."))]
    return f"it listens on {', '.join(others)}" if others else None


FAULTS = (
    *(
        replace(fault, name=f"{name}-{how}", what=f"{what}: {words}", **options)
        for fault, name, what in (
            (_MNIST, "mnist", "MNIST is downloaded"),
            (_HUB, "hub", "rows of the hub are fetched"),
            (_WANDB, "wandb", "W&B is online"),
        )
        for how, words, options in (
            ("no-route", "no network", {"prefix": NO_ROUTE, "variables": KEYS, "needs": _namespace}),
            (
                "silent",
                "a server takes the connection and says nothing",
                {"prepare": silent_server, "variables": SILENT},
            ),
        )
    ),
    Fault(
        "no-network",
        "a run without any network but the loopback",
        (*RUN, "gpus=2"),
        prefix=NO_ROUTE,
        code=0,
        statuses=("ok",),
        ends=("ok",),
        needs=_namespace,
    ),
    Fault(
        "strangers",
        "somebody sends nonsense to every open port of a run",
        (*RUN, "gpus=2", "seed=1"),
        inside="hold@step3",
        at=held,
        act=then_release(stranger),
        code=0,
        statuses=("ok",),
        ends=("ok",),
        check=listens_elsewhere,
    ),
)
