"""The workloads of both entries, and their schemas in Hydra's store."""

from hydra.core.config_store import ConfigStore

from multicard.llm import workload as llm
from multicard.vision import workload as vision

WORKLOADS = (vision.WORKLOAD, llm.WORKLOAD)


def register() -> None:
    """Put the schemas where the files under `conf/` look for them (`schema/...`)."""
    store = ConfigStore.instance()
    for workload in WORKLOADS:
        store.store(group="schema", name=workload.name, node=workload.schema)
        for group, options in workload.options.items():
            for name, schema in options.items():
                store.store(group=f"schema/{group}", name=name, node=schema)
