"""The words of a command from left to right: what each stands for, where it is typed as in other
programs.
"""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra._internal.utils import get_args_parser

from multicard.cli import paths_as_values, value_quoting
from multicard.cli.paths_as_values import PathMeaning
from multicard.cli.vocabulary import SLURM, TRUE, Vocabulary, parts_of
from multicard.config.script import STYLE

LIKE = 0.8  # how alike two names are of which one is a slip of the other
MULTIRUN = ("-m", "--multirun")
GPUS = "gpus"
VISIBLE = "CUDA_VISIBLE_DEVICES"
PATHS_OF = {  # no roles: which key has the path of an option that needs one
    "images": "dataset.root=FOLDER",
    "chat": "dataset.data_files=FILE",
    "preference": "dataset.data_files=FILE",
    "hf": "model.path=FOLDER",
}


@dataclass(frozen=True)
class WordReading:
    """A part of a command as it was typed, and the words that it stands for.

    is_mended: they are others. is_unknown: they are the same, and nothing here is called so.
    path: what a path in it means. variables: of the environment, that go before the command.
    """

    typed: str
    words: tuple[str, ...]
    is_mended: bool = False
    is_unknown: bool = False
    path: PathMeaning | None = None
    variables: tuple[str, ...] = ()

    @property
    def is_taken(self) -> bool:
        """True for a path that needs no question."""
        return self.path is not None and not self.is_mended


class WordReader:
    """Reads the words of one command from left to right."""

    def __init__(self, words: Sequence[str], names: Vocabulary) -> None:
        self.left = [*words]
        self.names = names
        self.workload = names.workload
        self.given = {word.partition("=")[0] for word in words}
        self.flags = get_args_parser()._option_string_actions
        self.sweeps = not {*words}.isdisjoint(MULTIRUN)
        self.starts_scripts = "args" in self.workload.free
        self.has_script = self.starts_scripts and "script" in self.given

    def readings(self) -> Iterator[WordReading]:
        while self.left:
            word = self.left.pop(0)
            if word.startswith("-") and not _is_number(word):
                yield self._flag(word)
            elif word.startswith(("+", "~")) and not word.startswith("~/"):  # Hydra's
                yield WordReading(word, (word,), is_unknown="=" not in word)
            elif "=" in word.lstrip("="):
                yield self._pair(word)
            elif word.endswith(".py") and self.starts_scripts and not self.has_script:
                yield WordReading(word, (f"script={word}",), is_mended=True)
                yield from self._of_script()
            else:
                yield self._bare(word)

    def _next_value(self) -> str | None:
        """The next word, where it is the value of a flag."""
        if self.left and not (self.left[0].startswith("-") and not _is_number(self.left[0])):
            following = self.left[0]
            if "=" not in following:
                return self.left.pop(0)
        return None

    # ---- one part

    def _flag(self, word: str) -> WordReading:
        name, sign, value = word.partition("=")
        action = self.flags.get(name)
        if action is not None:  # Hydra's own
            takes_next = action.nargs is None and not sign and self.left
            words = (word, self.left.pop(0)) if takes_next else (word,)
            return WordReading(" ".join(words), words)
        if not word.startswith("--") or not name.strip("-"):
            return WordReading(word, (word,), is_unknown=True)
        raw = (word,)
        own = name.removeprefix("--").replace("-", "_")
        key = self.names.key_of(own)
        negated = self.names.key_of(own.removeprefix("no_")) if own.startswith("no_") else None
        if key is None and negated is not None and self.names.takes_no_value(negated):
            return WordReading(word, (f"{negated}=false",), is_mended=True)
        is_switch = key is None and self.names.option_named(own) is not None
        takes_value = not is_switch and (key is None or not self.names.takes_no_value(key))
        if not sign:
            following = self.left[0].lower() if self.left else ""
            if takes_value or following in ("true", "false"):
                found = self._next_value()
                raw = (word,) if found is None else (word, found)
                value = found or ""
            value = value or "true"
        typed = " ".join(raw)
        read = self._meant(own, value, typed)
        if read is not None:
            return read
        if self.has_script:
            return WordReading(typed, (f"args.{name.removeprefix('--')}={value}",), is_mended=True)
        near = difflib.get_close_matches(own, self.names.types, n=1, cutoff=LIKE)
        slip = self._meant(near[0], value, typed) if near else None
        return slip or WordReading(typed, raw, is_unknown=True)

    def _pair(self, typed: str) -> WordReading:
        key, _, value = typed.partition("=")
        is_hydras = key.startswith(("hydra.", "hydra/")) and key != SLURM.partition("=")[0]
        if not key or is_hydras or value[:1] in ("", "="):
            return WordReading(typed, (typed,))
        read = self._meant(key, value, typed)
        if read is not None:
            return read
        if self.has_script and not difflib.get_close_matches(key, self.names.types, 1, LIKE):
            return WordReading(typed, (f"args.{key}={value}",), is_mended=True)
        return WordReading(typed, (typed,), is_unknown=True)

    def _bare(self, word: str) -> WordReading:
        is_name = self.names.key_of(word) is not None and word.replace("_", "").isalnum()
        if is_name and self.left[:1] == ["="] and len(self.left) > 1:
            value = self.left[1]
            del self.left[:2]
            return self._renamed(word, value, (word, "=", value))
        if is_name and self.names.takes_no_value(str(self.names.key_of(word))):
            return self._renamed(word, "true", (word,))
        if is_name and self.left and "=" not in self.left[0] and self.left[0][:1] != "-":
            value = self.left.pop(0)
            return self._renamed(word, value, (word, value))
        group = "model" if paths_as_values.is_model(word) else "dataset"
        if paths_as_values.is_hub_name(word):
            group = "model"
        meaning = paths_as_values.meaning(group, word, self.workload)
        if meaning is not None:
            return WordReading(word, self._of_path(meaning), is_mended=True, path=meaning)
        option = self.names.option_named(word)
        if option is not None:
            return WordReading(word, self._with_path(*option), is_mended=True)
        return WordReading(word, (word,), is_unknown=True)

    def _renamed(self, name: str, value: str, raw: tuple[str, ...]) -> WordReading:
        typed = " ".join(raw)
        read = self._meant(name, value, typed)
        if read is None:
            return WordReading(typed, raw, is_unknown=True)
        return WordReading(
            typed, read.words, is_mended=True, path=read.path, variables=read.variables
        )

    # ---- what it means

    def _meant(self, name: str, value: str, typed: str) -> WordReading | None:
        """The reading of a name and a value; None where they mean nothing here."""
        key = name if self.names.has(name) else self.names.key_of(name)
        if key is None:
            option = self.names.option_named(name) if value in TRUE else None
            if option is None:
                return None
            return WordReading(typed, self._with_path(*option), is_mended=True)
        numbers = value.strip("[]").split(",")
        are_numbers = not self.sweeps and "0" in numbers
        if key == GPUS and are_numbers and (len(numbers) > 1 or name != GPUS):
            visible = f"{VISIBLE}={','.join(numbers)}"
            return WordReading(
                typed, (f"{GPUS}={len(numbers)}",), is_mended=True, variables=(visible,)
            )
        if value not in self.names.options_of(key):
            meaning = self._meaning(key, value)
            if meaning is not None:
                is_sure = typed.startswith(f"{key}=") and self._is_sure(meaning)
                words = self._of_path(meaning)
                return WordReading(typed, words, is_mended=not is_sure, path=meaning)
        return self._of_value(key, value, typed)

    def _is_sure(self, meaning: PathMeaning) -> bool:
        return meaning.is_here and meaning.entry == self.workload.entry

    def _of_value(self, key: str, value: str, typed: str) -> WordReading | None:
        meant = self.names.value_of(key, value)
        if meant is None:
            return None
        if key == "name" and not typed.startswith("name="):  # of a folder
            meant = meant.rstrip("/").rpartition("/")[2]
        if typed == f"{key}={meant}":
            return WordReading(typed, (typed,))
        return WordReading(typed, self._with_path(key, meant), is_mended=True)

    def _meaning(self, group: str, value: str) -> PathMeaning | None:
        """What a path means; of a sweep over several, what all of them do."""
        if group not in ("dataset", "model"):  # no roles: the groups that have paths
            return None
        parts = parts_of(value)
        if len(parts) == 1 or Path(value).exists():
            return paths_as_values.meaning(group, value, self.workload)
        each = [paths_as_values.meaning(group, part, self.workload) for part in parts]
        found = [meaning for meaning in each if meaning is not None]
        begins = {meaning.words[:-1] for meaning in found}
        if len(found) < len(each) or len(begins) != 1:
            return None
        key = found[0].words[-1].partition("=")[0]
        values = [meaning.words[-1].partition("=")[2] for meaning in found]
        fetches = [meaning.fetch for meaning in found if meaning.fetch is not None]
        return PathMeaning(
            (*found[0].words[:-1], f"{key}={','.join(values)}"),
            found[0].entry,
            " && ".join(fetches) or None,
            all(meaning.is_there for meaning in found),
        )

    def _of_path(self, meaning: PathMeaning) -> tuple[str, ...]:
        """The words of a path, without those that the command has itself."""
        *begin, last = meaning.words
        key, _, value = last.partition("=")
        groups = ("dataset", "model")  # no roles: the groups that have paths
        kept = [
            word
            for word in begin
            if word.partition("=")[0] in groups or word.partition("=")[0] not in self.given
        ]
        return *kept, f"{key}={value_quoting.readable(key, value, sweeps=True)}"

    def _with_path(self, key: str, value: str) -> tuple[str, ...]:
        """A key and its value, and the path that this option needs."""
        needed = PATHS_OF.get(value) if key in self.names.groups else None
        lacks = needed is not None and needed.partition("=")[0] not in self.given
        return (f"{key}={value}", needed) if needed is not None and lacks else (f"{key}={value}",)

    # ---- scripts

    def _of_script(self) -> Iterator[WordReading]:
        """What follows a script: its own flags and words, and keys of multicard."""
        own = list[str]()
        while self.left:
            word = self.left.pop(0)
            name, sign, value = word.partition("=")
            if word in ("-h", "--help"):  # of the entry
                yield WordReading(word, (word,))
            elif word.startswith("--") and len(word) > len("--"):
                found = None if sign else self._next_value()
                typed = word if found is None else f"{word} {found}"
                value = value if sign else found or "true"
                yield WordReading(typed, (f"args.{name[2:]}={value}",), is_mended=True)
            elif sign and self.names.has(name):
                yield WordReading(word, (word,))
            elif sign and not word.startswith("-"):
                yield WordReading(
                    word, (f"args.{STYLE}=hydra", f"args.{name}={value}"), is_mended=True
                )
            else:
                own.append(word)
        if own:
            listed = value_quoting.readable("words", f"[{','.join(own)}]", sweeps=False)
            yield WordReading(" ".join(own), (f"words={listed}",), is_mended=True)


def _is_number(word: str) -> bool:
    return word[1:2].isdigit()
