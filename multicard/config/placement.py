"""Decides where a run's ranks go on this machine."""

from dataclasses import dataclass

from multicard.config.base import Backend, RunConfig, TrainingConfig
from multicard.config.job import Device, count
from multicard.messages import Refusal

OVERSUBSCRIBED = "ranks shared a GPU: its figures do not describe this machine"
CROWDED = "more CPU ranks than cores: ranks had to wait for one another"


@dataclass(frozen=True)
class Placement:
    """Where a run's ranks go.

    device: the type of the devices.
    backend: the backend of collectives.
    processes: the number of processes per node.
    """

    device: str
    backend: str
    processes: int
    oversubscribed: bool
    nodes: int = 1

    @property
    def world_size(self) -> int:
        return self.processes * self.nodes

    def crowded(self, cores: int) -> bool:
        """True if the CPU ranks on a node have to share fewer `cores`."""
        return self.device == "cpu" and self.processes > cores

    def ranks(self, gpus: int) -> str:
        """Describe the ranks, as in "2 nodes of 4 GPUs"."""
        ranks_of_node = count(gpus, "GPU" if self.device == "cuda" else "CPU rank")
        description = f"{self.nodes} nodes of {ranks_of_node}" if self.nodes > 1 else ranks_of_node
        return description + (", oversubscribed (not for figures)" if self.oversubscribed else "")


def require_nodes(config: RunConfig, nodes: int) -> None:
    """Refuse a run if its configuration and its job differ in the number of nodes."""
    if config.nodes != nodes:
        raise Refusal(
            "placement.nodes",
            f"nodes={config.nodes}: the run has {nodes}; submit it with"
            " `hydra/launcher=submitit_slurm`, or use `nodes=1`",
            key="nodes",
            value=config.nodes,
            nodes=nodes,
        )


def place(config: RunConfig, cuda_devices: int, nodes: int = 1) -> Placement:
    """Choose device and backend on a machine with `cuda_devices` visible CUDA devices, which is one
    of the run's `nodes`.

    Raises:
        Refusal: this machine cannot run the configuration.
    """
    best = Device.cuda if cuda_devices else Device.cpu
    device = best if config.device is Device.auto else config.device
    on_cuda = device is Device.cuda
    if on_cuda and cuda_devices == 0:
        raise Refusal(
            "placement.no-cuda",
            "device=cuda: no CUDA device is visible; use `device=cpu` or `device=auto`",
            key="device",
        )
    price = config.price.gpu_hour
    if price is not None and not on_cuda:
        raise Refusal(
            "placement.price-without-gpu",
            f"price.gpu_hour={price}: the run has CPU ranks, which use no GPU; leave it out",
            key="price.gpu_hour",
            value=price,
        )
    oversubscribed = on_cuda and config.gpus > cuda_devices
    if oversubscribed and not config.oversubscribe:
        raise Refusal(
            "placement.too-few-gpus",
            f"gpus={config.gpus}: {cuda_devices} CUDA device(s) are visible; use"
            f" `gpus={cuda_devices}` or fewer, `device=cpu`, or `oversubscribe=true` to try the"
            " code (never for results)",
            key="gpus",
            value=config.gpus,
            visible=cuda_devices,
        )
    require_nodes(config, nodes)

    backend = config.backend if isinstance(config, TrainingConfig) else Backend.auto
    if backend is Backend.auto:
        backend = Backend.nccl if on_cuda and not oversubscribed else Backend.gloo
    if backend is Backend.nccl and not on_cuda:
        raise Refusal(
            "placement.nccl-without-cuda",
            "backend=nccl: needs CUDA devices; use `backend=gloo` or `backend=auto` on CPU",
            key="backend",
        )
    if backend is Backend.nccl and oversubscribed:
        raise Refusal(
            "placement.nccl-oversubscribed",
            "backend=nccl: two of its ranks cannot share a GPU; use `backend=gloo` or"
            " `backend=auto`",
            key="backend",
        )
    return Placement(str(device), str(backend), config.processes, oversubscribed, nodes)
