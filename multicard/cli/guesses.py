"""Words of a command that are typed as in other programs: `--lr 0.1`, `learning_rate=0.1`,
`model=Qwen/Qwen3-0.6B`, `photos/`. They are answered by the whole command as it is typed here.

Paths in the place of options are taken where they can mean one thing.
"""

from collections.abc import Sequence
from typing import NamedTuple

from multicard import workloads
from multicard.cli import paths_as_values
from multicard.cli.vocabulary import LAUNCHER, SLURM, Vocabulary
from multicard.cli.word_reader import WordReader, WordReading
from multicard.messages import Refusal, say
from multicard.run.workload import Workload

COMPLETION = ("-sc", "--shell-completion")


def as_meant(words: Sequence[str], workload: Workload) -> list[str]:
    """The words with paths in place of options as the keys that they are taken for.

    Raises:
        Refusal: with the whole command, where words are typed as in other programs.
    """
    if {*words} & {*COMPLETION}:
        return [*words]
    names = Vocabulary(workload)
    readings = [*WordReader(words, names).readings()]
    if any(reading.is_mended for reading in readings):
        raise _refusal(readings, names)
    for reading in readings:
        if reading.is_taken:
            say(paths_as_values.notice(reading.typed, reading.words), error=True)
    return _flat(readings)


class ProposedCommand(NamedTuple):
    """A command of an entry. foreign: what was typed that the entry does not know, or that is of
    another one.
    """

    command: str
    words: list[str]
    foreign: list[str]


def proposed(words: Sequence[str], workload: Workload) -> ProposedCommand:
    """The whole command of an entry that is meant by words."""
    names = Vocabulary(workload)
    readings = [*WordReader(words, names).readings()]
    foreign = []
    for reading in readings:
        is_elsewhere = reading.path is not None and reading.path.entry != workload.entry
        if reading.is_unknown or is_elsewhere:
            foreign.append(reading.typed)
    own = [reading for reading in readings if reading.typed not in foreign]
    return ProposedCommand(_command(own, workload.entry, names), _flat(own), foreign)


def _flat(readings: Sequence[WordReading]) -> list[str]:
    words = list[str]()
    for reading in readings:
        words.extend(reading.words)
    return words


def _refusal(readings: Sequence[WordReading], names: Vocabulary) -> Refusal:
    mended = [reading for reading in readings if reading.is_mended]
    unknown = [reading.typed for reading in readings if reading.is_unknown]
    left = f" (without {', '.join(unknown)}, which nothing here is called)" if unknown else ""
    paths = [(reading.typed, reading.path) for reading in mended if reading.path is not None]
    elsewhere = [(word, path) for word, path in paths if path.entry != names.workload.entry]
    on_hub = [(word, path) for word, path in paths if path.fetch is not None]
    absent = [word for word, path in paths if not path.is_there]
    if elsewhere:
        word, path = elsewhere[0]
        command = _command(readings, path.entry, names)
        return Refusal(
            "words.path-of-another-entry",
            f"{word}: is for {path.entry}{left}; use `{command}`",
            typed=word,
            unknown=unknown,
            command=command,
        )
    command = _command(readings, names.workload.entry, names)
    if on_hub:
        listed = ", ".join(word for word, _ in on_hub)
        fetch = " && ".join(str(path.fetch) for _, path in on_hub)
        return Refusal(
            "words.on-the-hub",
            f"{listed}: is not on this disk, and nothing is downloaded unasked; get it by"
            f" `{fetch}`, then use `{command}`{left}",
            typed=listed,
            unknown=unknown,
            fetch=fetch,
            command=command,
        )
    if absent:
        listed = ", ".join(absent)
        return Refusal(
            "words.no-such-path",
            f"{listed}: no such file or folder; with one that is there, use `{command}`{left}",
            typed=listed,
            unknown=unknown,
            command=command,
        )
    listed = ", ".join(reading.typed for reading in mended)
    return Refusal(
        "words.typed-otherwise",
        f"{listed}: is not how it is typed here; use `{command}`{left}",
        typed=listed,
        unknown=unknown,
        command=command,
    )


def _command(readings: Sequence[WordReading], entry: str, names: Vocabulary) -> str:
    """The whole command, without what nothing here is called; of another entry with the words
    that it has too.
    """
    own = [reading for reading in readings if not reading.is_unknown]
    flags = _flat([reading for reading in own if reading.words[0].startswith("-")])
    words = _flat([reading for reading in own if not reading.words[0].startswith("-")])
    keys = {word.partition("=")[0] for word in words}
    if any(key.startswith(LAUNCHER) for key in keys) and SLURM.partition("=")[0] not in keys:
        words.append(SLURM)
    for key in _flat([reading for reading in readings if reading.is_mended]):
        option = names.option_with(key.partition("=")[0])
        group = key.partition(".")[0]
        if option is not None and group not in keys:
            words.append(f"{group}={option}")
            keys.add(group)
    if entry != names.workload.entry:
        theirs = Vocabulary(workloads.of_entry(entry))
        words = [word for word in words if theirs.has(word.partition("=")[0])]
    variables = list[str]()
    for reading in readings:
        variables.extend(reading.variables)
    return " ".join([*variables, paths_as_values.command(entry, [*flags, *words])])
