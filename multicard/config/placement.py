"""Where a run's ranks go on the machine at hand."""

from dataclasses import dataclass

from multicard.config.base import Backend, RunConfig, TrainingConfig
from multicard.config.job import Device, count
from multicard.messages import Refusal

OVERSUBSCRIBED = "ranks shared a GPU: not a figure of this machine"
CROWDED = "more CPU ranks than cores: they took turns"


@dataclass(frozen=True)
class Placement:
    """Where a run's ranks go: the device type, the collectives' backend, the processes a node,
    and the nodes.
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
        """True where CPU ranks have to take turns on `cores` of a node."""
        return self.device == "cpu" and self.processes > cores

    def ranks(self, gpus: int) -> str:
        """A description of the ranks: "2 nodes of 4 GPUs"."""
        each = count(gpus, "GPU" if self.device == "cuda" else "CPU rank")
        several = f"{self.nodes} nodes of {each}" if self.nodes > 1 else each
        return several + (", oversubscribed (not for figures)" if self.oversubscribed else "")


def require_nodes(config: RunConfig, nodes: int) -> None:
    """Refuse a run that is to have another number of nodes than it has."""
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
    """Decide device and backend on a machine with `cuda_devices` visible CUDA devices,
    one of the run's `nodes`.

    Raises:
        Refusal: what this machine cannot do.
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
            f"price.gpu_hour={price}: the run is of CPU ranks, which use no GPU; leave it out",
            key="price.gpu_hour",
            value=price,
        )
    oversubscribed = on_cuda and config.gpus > cuda_devices
    if oversubscribed and not config.oversubscribe:
        raise Refusal(
            "placement.too-few-gpus",
            f"gpus={config.gpus}: {cuda_devices} CUDA device(s) are visible; use"
            f" `gpus={cuda_devices}` or fewer, `device=cpu`, or `oversubscribe=true` to try the"
            " code (never for figures)",
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
