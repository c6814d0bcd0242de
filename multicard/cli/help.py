"""The text of `--help`: the groups and keys that an entry accepts, each with its value and a description."""

from collections.abc import Iterator
from dataclasses import fields
from textwrap import wrap
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from multicard.run.workload import Workload
from multicard.workloads import CONF, groups

WIDTH, INDENT = 120, 36

GROUPS = {  # that set keys of other groups and have none of their own
    "preset": "several options at once: fast is what makes training fast, papers are the defaults",
    "experiment": "a sweep that repeats one table or figure of the papers (conf/experiment/), or all of them",
}


def text(workload: Workload, usage: str, words: list[str]) -> str:
    """The help of an entry, with the options that `words` choose.

    Args:
        usage: a sentence, an empty line, and examples.

    Raises:
        HydraException: `words` cannot be composed.
    """
    name = workload.entry.removesuffix(".py")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose(name, [word for word in words if not word.startswith("-")], return_hydra_config=True)
    chosen = cfg.hydra.runtime.choices
    descriptions = {field.name: field.metadata.get("help", "") for field in fields(workload.schema)} | GROUPS
    sentence, *examples = usage.strip().splitlines()
    lines = [sentence, *(f"  {line.strip()}".rstrip() for line in examples)]
    lines += ["", "Groups, set as group=option:"]
    for group, options in groups(workload).items():
        choices = [f"one of {', '.join(options)}"] if len(options) > 1 else []
        lines += _row(f"{group}={_value(chosen[group])}", descriptions[group], *choices)
    group, options = next(iter(workload.options.items()))
    lines += [
        "",
        f"Keys, set as key=value; those of a group depend on its option (try {group}={[*options][-1]} --help):",
    ]
    for name, value, description in keys(workload.schema, cfg):
        if name not in chosen:
            lines += _row(f"{name}={value}", description)
    lines += [
        "",
        "--cfg job prints the configuration of a command without running it; --hydra-help lists Hydra's flags.",
    ]
    return "\n".join(lines)


def keys(schema: type, cfg: DictConfig, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Name, value and description of each key, in the order of the schema; those of groups come last."""
    values: Any = OmegaConf.to_container(cfg, resolve=False)
    groups = []
    for field in fields(schema):
        if isinstance(values[field.name], dict):
            groups.append(field.name)
        elif "help" in field.metadata:
            yield prefix + field.name, _value(values[field.name]), field.metadata["help"]
    for name in groups:
        option: Any = OmegaConf.get_type(cfg, name)
        yield from keys(option, cfg[name], f"{prefix}{name}.")


def _value(value: Any) -> str:
    """A value as the command line takes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{','.join(map(_value, value))}]"
    return str(value)


def _row(name: str, *paragraphs: str) -> list[str]:
    """A name, and beside it the paragraphs, wrapped; below it where the name is too long."""
    margin = " " * INDENT
    lines = [margin + line for paragraph in paragraphs for line in wrap(paragraph, WIDTH - INDENT)]
    if len(name) > INDENT - 4 or not lines:
        return [f"  {name}", *lines]
    return [f"  {name:<{INDENT - 2}}{lines[0][INDENT:]}", *lines[1:]]
