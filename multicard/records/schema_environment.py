"""The schema of environment.json: the machine and the software that a run used."""

from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from multicard.records.schema_types import Count, Int, Scalar


class Git(Struct):
    commit: str | None = None
    dirty: Annotated[bool | None, "true if tracked files differ from the commit"] = None
    changes: Annotated[str | None, "8 hex digits that identify this difference"] = None


class Cpu(Struct):
    model: str | None = None
    cores: Annotated[Count, "number of cores that the run may use"] = None
    cores_online: Count = None
    memory_bytes: Count = None


class EnvironmentGpu(Struct):
    """A visible GPU; values are null if NVML does not provide them."""

    uuid: str
    name: str | None = None
    memory_bytes: Count = None
    sm_clock_max_mhz: Count = None
    memory_clock_max_mhz: Count = None
    driver: str | None = None


class RankPlace(Struct):
    """Where a rank ran."""

    rank: Int
    host: str
    device: Annotated[str, "the GPU's name, or cpu"]
    threads: Count
    cpus: Annotated[str | None, 'cores that it was bound to, as in "0-7,16-23"']
    gpu: Annotated[str | UnsetType | None, "the GPU's UUID, from CUDA; null on CPU"] = UNSET


class Environment(Struct, kw_only=True):
    """Machine and software of a run. `numa` and the keys after it are filled in once the ranks have
    started.
    """

    recorded_at: Annotated[str | None, "UTC, ISO 8601"] = None
    host: Annotated[str | None, "name of the controller's node"] = None
    git: Annotated[Git | None, "null outside a checkout"] = None
    python: str | None = None
    packages: Annotated[dict[str, str | None], "versions; null where not installed"] = {}
    platform: str | None = None
    cpu: Cpu | None = None
    gpus: list[EnvironmentGpu] = []
    topology: Annotated[dict[str, Any] | None, "NUMA nodes, PCIe and NVLink of the GPUs"] = None
    cuda_visible_devices: str | None = None
    cuda_device_order: Annotated[
        str | UnsetType | None, "PCI_BUS_ID unless the user chose another"
    ] = UNSET
    slurm: Annotated[dict[str, str], "the variables SLURM_JOB..."] = {}
    numa: Annotated[
        str | UnsetType | None, "node if ranks were bound to the NUMA node of their GPU"
    ] = UNSET
    malloc: Annotated[
        str | UnsetType, "tuned or system: the setting of malloc that took effect"
    ] = UNSET
    flags: Annotated[
        dict[str, Scalar] | UnsetType | None, "TF32, cuDNN and data types, as used"
    ] = UNSET
    openmp: Annotated[
        dict[str, str] | UnsetType | None, "the ranks' variables OMP_... and GOMP_..., as used"
    ] = UNSET
    ranks: list[RankPlace] | UnsetType = UNSET
