"""The workloads of all entries: their schemas in Hydra's store, their options and experiments."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from multicard.config import CONF
from multicard.config.hydra_config import HydraWithExperiment
from multicard.llm import workload as llm
from multicard.run.workload import Workload
from multicard.script import workload as script
from multicard.vision import trial
from multicard.vision import workload as vision

WORKLOADS = (vision.WORKLOAD, llm.WORKLOAD, script.WORKLOAD)
ALL = "all"  # `experiment=all` stands for every experiment of an entry.


@cache  # It takes a tenth of a second, and a process may run several commands.
def register() -> None:
    """Store the schemas under the names by which the files in `conf/` refer to them (`schema/...`).

    Also register the resolvers that these files use.
    """
    store = ConfigStore.instance()
    store.store(group="hydra", name="config", node=HydraWithExperiment)
    OmegaConf.register_new_resolver("of_weights", trial.of_weights, replace=True)
    OmegaConf.register_new_resolver(
        "own_groups", lambda entry: f"file://{CONF / entry}", replace=True
    )
    for workload in WORKLOADS:
        schema = OmegaConf.structured(workload.schema)
        for key in workload.free:
            if key in schema:
                OmegaConf.set_struct(schema[key], False)
        store.store(group="schema", name=workload.name, node=schema)
        for group, options in workload.options.items():
            for name, option in options.items():
                node = OmegaConf.structured(option)
                for key in workload.free:
                    option_key = key.removeprefix(f"{group}.")
                    if option_key != key and option_key in node:
                        OmegaConf.set_struct(node[option_key], False)
                store.store(group=f"schema/{group}", name=name, node=node)


def composed(entry: str, words: Sequence[str]) -> DictConfig:
    """Compose the configuration of an entry from words of the command line, with Hydra's own part.

    Exceptions of Hydra are not caught.
    """
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose(entry.removesuffix(".py"), [*words], return_hydra_config=True)


def of_entry(entry: str) -> Workload:
    """Return the workload whose entry has this file name."""
    return next(workload for workload in WORKLOADS if workload.entry == entry)


def groups(workload: Workload) -> dict[str, list[str]]:
    """Return the options that the entry accepts in each group, in the order of its defaults."""
    return {group: options(workload, group) for group in _defaults(workload)}


def optional_groups(workload: Workload) -> list[str]:
    """Return the groups in which the entry has no option until one is chosen."""
    return [group for group, option in _defaults(workload).items() if option is None]


@cache  # A command asks many times, and reading the file takes 4 ms.
def _defaults(workload: Workload) -> Mapping[str, str | None]:
    """Return the entry's default option of each group."""
    entries = (
        entry for entry in OmegaConf.load(_file(workload)).defaults if not isinstance(entry, str)
    )
    pairs = []
    for entry in entries:
        pairs.extend(entry.items())
    return {str(group): option for group, option in pairs if "/" not in str(group)}


def defaults(kind: str) -> dict[str, Any]:
    """Return the option of each group, and the value of each key outside of groups, by default.

    Args:
        kind: The kind of the runs, as in their records.
    """
    workload = next(workload for workload in WORKLOADS if workload.name == kind)
    entry_config: Any = OmegaConf.to_container(OmegaConf.load(_file(workload)), resolve=False)
    keys = {
        field.name: field.default
        for field in fields(workload.schema)
        if field.default is not MISSING
    }
    return (
        keys
        | {key: value for key, value in entry_config.items() if not isinstance(value, dict | list)}
        | dict(_defaults(workload))
    )


@cache
def known_keys(workload: Workload) -> Mapping[str, set[Any]]:
    """Return every group and key that a command line may set, with the types that it may have.

    The keys of all options are included.
    """
    types: dict[str, set[Any]] = {name: set() for name in groups(workload)}
    schemas: list[tuple[str, type]] = [("", workload.schema)]
    for group, options in workload.options.items():
        schemas.extend((f"{group}.", schema) for schema in options.values())
    while schemas:
        prefix, schema = schemas.pop()
        for field in fields(schema):
            types.setdefault(prefix + field.name, set()).add(field.type)
            if isinstance(field.type, type) and is_dataclass(field.type):
                schemas.append((f"{prefix}{field.name}.", field.type))
    return types


def _file(workload: Workload) -> Path:
    return CONF / f"{workload.entry.removesuffix('.py')}.yaml"


def options(workload: Workload, group: str) -> list[str]:
    """Return the options of a group that the entry accepts."""
    if group == "experiment":
        return [*experiments(workload), ALL]
    return list(workload.options.get(group) or files(workload, group))


def files(workload: Workload, group: str) -> list[str]:
    """Return the options of a group that have a file.

    The entry may have files of its own, as for `preset`. Otherwise the entries share them.
    """
    return sorted(path.stem for path in _folder(workload, group).glob("*.yaml"))


def option_file(workload: Workload, group: str, option: str) -> Path:
    """Return the file of a group's option."""
    return _folder(workload, group) / f"{option}.yaml"


def _folder(workload: Workload, group: str) -> Path:
    entry_folder = _file(workload).with_suffix("") / group
    return entry_folder if entry_folder.is_dir() else CONF / group


def every_option(workload: Workload, group: str) -> list[str]:
    """Return the options of a group that the entry accepts, also those that a library names."""
    library_options = workload.named.get(group)
    return [*options(workload, group), *(library_options.names() if library_options else ())]


def experiments(workload: Workload) -> list[str]:
    """Return the experiments whose file in `conf/experiment/` names this entry."""
    line = re.compile(rf"^ *entry: {re.escape(workload.entry)}$", re.MULTILINE)
    return sorted(
        path.stem for path in (CONF / "experiment").glob("*.yaml") if line.search(path.read_text())
    )


def with_experiment(words: list[str], name: str) -> list[str]:
    """Return the words of a command, with the experiment replaced by another."""
    return [f"experiment={name}" if word.startswith("experiment=") else word for word in words]
