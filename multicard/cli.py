"""The command around Hydra: help, refusals in one line, the final table and the exit code."""

import difflib
import os
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from multicard import help as command_help
from multicard import workloads
from multicard.config.keys import require
from multicard.config.repetition import REPETITION
from multicard.controller import session
from multicard.controller.workload import Workload
from multicard.ranks import interruption


def execute(main: Callable[[], None], workload: Workload, usage: str | None) -> int:
    """Call a function that `hydra.main` decorated, print the table of what it measured and return the exit code.

    Args:
        usage: the beginning of `--help`: a sentence, an empty line, and examples.
    """
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises what it would print over many lines
    session.SESSION.workload = workload
    words = sys.argv[1:]
    interruption.answer(_keyboard_interrupt)
    try:
        check_options(words, workload)
        if {"-h", "--help"} & {*words}:
            print(command_help.text(workload, usage or "", words))
            return 0
        main()
    except ValueError as error:  # about a sweep as a whole: nothing was started
        print(f"refused: {error}", file=sys.stderr)
        session.close()
        return 1
    except (HydraException, OmegaConfBaseException) as error:
        causes = [str(part) for part in (error, error.__cause__) if part is not None]
        print(f"refused: {explain(chr(10).join(causes), workload)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupted:
        print(f"interrupted by {str(interrupted) or 'SIGINT'}", file=sys.stderr)
        session.SESSION.abandoned = True
    interruption.ignore_further()
    return session.close()


def _keyboard_interrupt(number: int) -> KeyboardInterrupt:
    return KeyboardInterrupt(signal.Signals(number).name)


def check_options(words: list[str], workload: Workload) -> None:
    """Refuse what Hydra would compose: options of the other entry, added keys (`+key=`), sweeps of experiments.

    Raises:
        ValueError: with the option and its alternatives.
    """
    known = known_keys(workload)
    for word in words:
        group, _, value = word.partition("=")
        added = group.lstrip("+")
        if added != group and added.partition(".")[0] != "hydra":  # Hydra would add a key that nobody reads
            require(added in known, _explain_key(added, workload))
        underscored = group.replace(".", "_")  # repeat.error, as repeat is no group
        require(group in known or underscored not in REPETITION, f"{word}: write {underscored}={value}")
        if group in ("experiment", "scale", *REPETITION[:-1]):
            require("," not in value, f"{word}: takes one value, not a sweep")
        if group not in ("experiment", *workload.options):
            continue
        own = workloads.options(workload, group)
        remedy = f"{workload.entry} has {', '.join(own)}"
        for option in set(value.split(",")) - {*own}:
            for other in workloads.WORKLOADS:
                belongs = option in workloads.options(other, group)
                require(not belongs, f"{group}={option}: belongs to {other.entry}; {remedy}")


def explain(message: str, workload: Workload) -> str:
    """One line for what Hydra or OmegaConf says of a command line that cannot be composed: the key and a remedy."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    if match := re.match(r"Could not override '([^']*)'", lines[0]):
        return _explain_key(match[1], workload)
    if match := re.search(r"Could not find '([^']*)'", lines[0]):
        group, _, option = match[1].rpartition("/")
        if group in workloads.groups(workload):
            options = ", ".join(workloads.options(workload, group))
            return f"{group}={option}: no such option; choose one of {options}"
    if lines[0].startswith("Ambiguous value"):
        words = lines[0].partition("'")[2].rstrip("'")
        return f"{words}: several values are a sweep; add -m, or write a list as [a,b]"
    match = re.match(r"Error merging override (.*)", lines[0])
    if match is not None and len(lines) > 1:
        return f"{match[1]}: {lines[1][0].lower()}{lines[1][1:]}"
    return lines[0]


def _explain_key(key: str, workload: Workload) -> str:
    known = known_keys(workload)
    if key in known:
        return f"{key}: not a key of the option chosen for {key.partition('.')[0]}; --help shows those it has"
    for other in workloads.WORKLOADS:
        if key in known_keys(other):
            return f"{key}: belongs to {other.entry}"
    near = difflib.get_close_matches(key, known, n=3)
    return f"{key}: no such key here; " + (f"nearest: {', '.join(near)}" if near else "--help shows all keys")


def known_keys(workload: Workload) -> set[str]:
    """Every group and key that a command line may set, with the keys of all options."""
    names = {*workloads.groups(workload)}
    schemas: list[tuple[str, type]] = [("", workload.schema)]
    schemas += [(f"{group}.", schema) for group, options in workload.options.items() for schema in options.values()]
    while schemas:
        prefix, schema = schemas.pop()
        for field in fields(schema):
            names.add(prefix + field.name)
            if isinstance(field.type, type) and is_dataclass(field.type):
                schemas.append((f"{prefix}{field.name}.", field.type))
    return names
