"""Recognizes words that are typed as in other programs, such as `--lr 0.1`, `learning_rate=0.1`,
`model=Qwen/Qwen3-0.6B` and `photos/`.

The answer is the whole command as it is typed here. A path in place of an option is accepted if it
can only mean one thing.
"""

from collections.abc import Sequence
from typing import NamedTuple

from multicard import workloads
from multicard.cli import paths_as_values
from multicard.cli.launcher_words import LAUNCHER_GROUP, LAUNCHER_PREFIX, SLURM_WORD
from multicard.cli.vocabulary import Vocabulary
from multicard.cli.word_reader import WordReader, WordReading
from multicard.messages import Refusal, say
from multicard.run.workload import Workload

COMPLETION = ("-sc", "--shell-completion")


def as_meant(words: Sequence[str], workload: Workload) -> list[str]:
    """Return the words, with accepted paths replaced by the keys that they stand for.

    Raises:
        Refusal: words are typed as in other programs. It shows the whole command to use.
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
    return _words_of(readings)


class ProposedCommand(NamedTuple):
    """A command of an entry. `foreign` are words that the entry does not know, or that belong to
    another entry.
    """

    command: str
    words: list[str]
    foreign: list[str]


def proposed(words: Sequence[str], workload: Workload) -> ProposedCommand:
    """Return the whole command of an entry that the words are likely to mean."""
    names = Vocabulary(workload)
    readings = [*WordReader(words, names).readings()]
    foreign_words = []
    for reading in readings:
        is_elsewhere = reading.path is not None and reading.path.entry != workload.entry
        if reading.is_unknown or is_elsewhere:
            foreign_words.append(reading.typed)
    own_readings = [reading for reading in readings if reading.typed not in foreign_words]
    return ProposedCommand(
        _command(own_readings, workload.entry, names), _words_of(own_readings), foreign_words
    )


def _words_of(readings: Sequence[WordReading]) -> list[str]:
    words = list[str]()
    for reading in readings:
        words.extend(reading.words)
    return words


def _refusal(readings: Sequence[WordReading], names: Vocabulary) -> Refusal:
    mended_readings = [reading for reading in readings if reading.is_mended]
    unknown_words = [reading.typed for reading in readings if reading.is_unknown]
    without = (
        f" (without {', '.join(unknown_words)}, which is unknown here)" if unknown_words else ""
    )
    paths = [
        (reading.typed, reading.path) for reading in mended_readings if reading.path is not None
    ]
    of_other_entry = [(word, path) for word, path in paths if path.entry != names.workload.entry]
    on_hub = [(word, path) for word, path in paths if path.fetch is not None]
    absent_paths = [word for word, path in paths if not path.is_there]
    if of_other_entry:
        word, path = of_other_entry[0]
        command = _command(readings, path.entry, names)
        return Refusal(
            "words.path-of-another-entry",
            f"{word}: belongs to {path.entry}{without}; use `{command}`",
            typed=word,
            unknown=unknown_words,
            command=command,
        )
    command = _command(readings, names.workload.entry, names)
    if on_hub:
        typed_words = ", ".join(word for word, _ in on_hub)
        fetch = " && ".join(str(path.fetch) for _, path in on_hub)
        return Refusal(
            "words.on-the-hub",
            f"{typed_words}: is not on this disk, and nothing is downloaded unasked; get it by"
            f" `{fetch}`, then use `{command}`{without}",
            typed=typed_words,
            unknown=unknown_words,
            fetch=fetch,
            command=command,
        )
    if absent_paths:
        typed_words = ", ".join(absent_paths)
        return Refusal(
            "words.no-such-path",
            f"{typed_words}: no such file or folder; if it exists, use `{command}`{without}",
            typed=typed_words,
            unknown=unknown_words,
            command=command,
        )
    typed_words = ", ".join(reading.typed for reading in mended_readings)
    return Refusal(
        "words.typed-otherwise",
        f"{typed_words}: is typed differently here; use `{command}`{without}",
        typed=typed_words,
        unknown=unknown_words,
        command=command,
    )


def _is_flag(reading: WordReading) -> bool:
    return bool(reading.words) and reading.words[0].startswith("-")


def _command(readings: Sequence[WordReading], entry: str, names: Vocabulary) -> str:
    """Return the whole command without unknown words. For another entry, also drop words that it
    does not have.
    """
    known_readings = [reading for reading in readings if not reading.is_unknown]
    flags = _words_of([reading for reading in known_readings if _is_flag(reading)])
    words = _words_of([reading for reading in known_readings if not _is_flag(reading)])
    keys = {word.partition("=")[0] for word in words}
    if any(key.startswith(LAUNCHER_PREFIX) for key in keys) and LAUNCHER_GROUP not in keys:
        words.append(SLURM_WORD)
    for key in _words_of([reading for reading in readings if reading.is_mended]):
        option = names.option_with(key.partition("=")[0])
        group = key.partition(".")[0]
        if option is not None and group not in keys:
            words.append(f"{group}={option}")
            keys.add(group)
    if entry != names.workload.entry:
        their_vocabulary = Vocabulary(workloads.of_entry(entry))
        words = [word for word in words if their_vocabulary.has(word.partition("=")[0])]
    variables = list[str]()
    for reading in readings:
        variables.extend(reading.variables)
    return " ".join([*variables, paths_as_values.command(entry, [*flags, *words])])
