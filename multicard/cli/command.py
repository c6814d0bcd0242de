"""The command around Hydra: help, refusals in one line, the final table, and the exit code."""

import logging
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import fields
from textwrap import wrap
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from multicard import workloads
from multicard.cli import command_line, site_defaults
from multicard.cli.launcher_words import HELP, LAUNCHER_GROUP
from multicard.config import hydra_config
from multicard.messages import Message, drop, say
from multicard.ranks import interruption
from multicard.ranks.failures import no_space
from multicard.records.text_table import terminal_width
from multicard.run.workload import Workload
from multicard.sweep.command import Command, Conclude, Conclusion
from multicard.sweep.task import HydraTask

# The help is as wide as the terminal, within these bounds (characters).
LEAST_WIDTH = 60
MOST_WIDTH = 120
INDENT = 36

GROUPS = {  # Groups without keys of their own; they set keys of other groups.
    "preset": "several options at once: fast makes training fast, papers are the defaults",
    "experiment": (
        "a sweep that repeats a table or figure of the papers (conf/experiment/), or all of them"
    ),
}


def execute(
    workload: Workload, usage: str | None, conclude: Conclude = lambda folders: Conclusion()
) -> int:
    """Let Hydra run the command in `sys.argv`, print the table of its measurements, and return the
    exit code.

    Args:
        usage: the beginning of `--help`: a sentence, an empty line, and examples.
        conclude: draws a conclusion from the folders of a sweep's runs.
    """
    # With this variable, Hydra raises errors that it would otherwise print over many lines.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    logging.raiseExceptions = False  # No traceback if output cannot be written (`--info | head`).
    command = Command(workload)
    command.conclude = conclude
    workloads.register()
    interruption.answer(_keyboard_interrupt)
    try:
        words = command.words = command_line.switched(sys.argv[1:], workload)
        of_site = site_defaults.words_of_site(words, workload)
        sys.argv[1:] = [*words, *of_site]  # Hydra reads the words from there.
        overrides = command_line.overrides(sys.argv[1:])
        command_line.check_overrides(overrides, workload)
        if {"-h", "--help"} & {*words}:
            say(help_text(workload, usage or "", command_line.first_values(overrides)))
            return 0
        if of_site:
            say(site_defaults.notice(of_site), error=True)
        name = workload.entry.removesuffix(".py")
        # With -m, Hydra calls CellSweeper and CellLauncher (hydra_plugins/multicard_launchers), and
        # not this task.
        hydra.main(version_base="1.3", config_path=str(workloads.CONF), config_name=name)(
            HydraTask(command).measure
        )()
    except (HydraException, OmegaConfBaseException) as error:  # Must precede ValueError: some are.
        causes = [str(part) for part in (error, error.__cause__) if part is not None]
        return _refuse(command, str(command_line.explain("\n".join(causes), workload)))
    # A refusal of the command as a whole: nothing has been started.
    except (ValueError, hydra_config.RefusedByCallback) as error:
        return _refuse(command, str(error))
    except BrokenPipeError:  # The reader of Hydra's output has closed it (`--cfg job | head`).
        drop(sys.stdout)
    except OSError as error:  # The command could not write files before, between or after runs.
        disk_full = no_space(error, hydra_config.folder_of_command())
        if disk_full is None:
            raise
        return _refuse(command, disk_full)
    except KeyboardInterrupt as interrupt:
        if not command.abandoned:  # Otherwise, the interruption has been reported.
            name = str(interrupt) or "SIGINT"
            say(Message("command.interrupted", f"interrupted by {name}", signal=name), error=True)
        command.abandoned = True
    finally:
        interruption.ignore_further()
        hydra_config.remove_unused()
    return command.close()


def _refuse(command: Command, reason: str) -> int:
    line = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in reason)
    say(Message("command.refused", f"refused: {line}", reason=reason), error=True)
    command.close()
    return 1


def _keyboard_interrupt(number: int) -> KeyboardInterrupt:
    return KeyboardInterrupt(signal.Signals(number).name)


def help_text(workload: Workload, usage: str, words: list[str]) -> str:
    """Return the help of an entry for the options that `words` choose.

    Args:
        usage: a sentence, an empty line, and examples.

    Raises:
        HydraException: `words` cannot be composed.
    """
    cfg = workloads.composed(workload.entry, [word for word in words if not word.startswith("-")])
    chosen = cfg.hydra.runtime.choices
    descriptions = {
        field.name: field.metadata.get("help", "") for field in fields(workload.schema)
    } | GROUPS
    sentence, *examples = usage.strip().splitlines() or [""]
    lines = [sentence, *(f"  {line.strip()}".rstrip() for line in examples)]
    lines += ["", "Groups, set as group=option:"]
    for group, options in workloads.groups(workload).items():
        named = [workload.named[group].words] if group in workload.named else []
        choices = [f"one of {', '.join([*options, *named])}"] if len([*options, *named]) > 1 else []
        lines += _row(f"{group}={_value(chosen[group])}", descriptions[group], *choices)
    lines += _row(f"{LAUNCHER_GROUP}={chosen[LAUNCHER_GROUP]}", HELP)
    group, options = next(iter(workload.options.items()))
    lines += [
        "",
        (
            "Keys, set as key=value. The keys of a group depend on its option (try"
            f" {group}={[*options][-1]} --help):"
        ),
    ]
    for name, value, description in keys(workload.schema, cfg):
        if name not in chosen:
            lines += _row(f"{name}={value}", description)
    lines += [
        "",
        (
            "--cfg job prints the configuration of a command without running it. --hydra-help lists"
            " Hydra's flags."
        ),
    ]
    return "\n".join(lines)


def keys(schema: type, cfg: DictConfig, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield name, value and description of each key that a user may set.

    They are in the order of the schema. Keys of groups come last.
    """
    values: Any = OmegaConf.to_container(cfg, resolve=bool(prefix))
    groups = []
    for field in fields(schema):
        if OmegaConf.get_type(cfg, field.name) is dict:  # The user chooses the names of its keys.
            yield f"{prefix}{field.name}.KEY", "VALUE", field.metadata["help"]
        elif isinstance(values[field.name], dict):
            groups.append(field.name)
        elif "help" in field.metadata and not field.metadata["is_internal"]:
            yield prefix + field.name, _value(values[field.name]), field.metadata["help"]
    for name in groups:
        option: Any = OmegaConf.get_type(cfg, name)
        yield from keys(option, cfg[name], f"{prefix}{name}.")


def _value(value: Any) -> str:
    """Format a value as the command line takes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{','.join(map(_value, value))}]"
    return str(value)


def _row(name: str, *paragraphs: str) -> list[str]:
    """Format a name with wrapped paragraphs next to it, or below it if the name is too long."""
    width = max(LEAST_WIDTH, min(terminal_width() or MOST_WIDTH, MOST_WIDTH))
    margin = " " * INDENT
    lines = []
    for paragraph in paragraphs:
        lines.extend(margin + line for line in wrap(paragraph, width - INDENT))
    if len(name) > INDENT - 4 or not lines:
        return [f"  {name}", *lines]
    return [f"  {name:<{INDENT - 2}}{lines[0][INDENT:]}", *lines[1:]]
