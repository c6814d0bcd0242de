"""Reads the words of a command from left to right, and finds what each stands for if it is typed as
in another program.
"""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra._internal.utils import get_args_parser

from multicard.cli import paths_as_values, value_quoting
from multicard.cli.launcher_words import LAUNCHER_GROUP
from multicard.cli.paths_as_values import TUNING, PathMeaning
from multicard.cli.vocabulary import TRUE, Vocabulary, parts_of
from multicard.config.script import DASHED_STYLES, STYLE
from multicard.script import option_names

LEAST_SIMILARITY = 0.8  # Names at least this similar (difflib) count as a typing error.
MULTIRUN = ("-m", "--multirun")
GPUS = "gpus"
VISIBLE = "CUDA_VISIBLE_DEVICES"
HF_MODEL = "hf"  # The option of the group `model` for the folder of a transformers model.
PATH_OF_OPTION = {  # no roles: the key for the path that an option needs.
    "images": "dataset.root=FOLDER",
    "chat": "dataset.data_files=FILE",
    "preference": "dataset.data_files=FILE",
    "hf": "model.path=FOLDER",
}


@dataclass(frozen=True)
class WordReading:
    """A part of a command as it was typed, and the words that it stands for.

    is_mended: whether these words differ from the typed ones.
    is_unknown: whether they are the same, and unknown here.
    path: what a path in it means.
    variables: environment variables that go before the command.
    """

    typed: str
    words: tuple[str, ...]
    is_mended: bool = False
    is_unknown: bool = False
    path: PathMeaning | None = None
    variables: tuple[str, ...] = ()

    @property
    def is_taken(self) -> bool:
        """True for a path that is accepted without a refusal."""
        return self.path is not None and not self.is_mended


class WordReader:
    """Reads the words of one command from left to right."""

    def __init__(self, words: Sequence[str], names: Vocabulary) -> None:
        self.remaining = [*words]
        self.names = names
        self.workload = names.workload
        self.given = {word.partition("=")[0] for word in words}
        self.flags = get_args_parser()._option_string_actions
        self.sweeps = not {*words}.isdisjoint(MULTIRUN)
        self.starts_scripts = "args" in self.workload.free
        self.has_script = self.starts_scripts and "script" in self.given
        self.script_options = self._options_of_script(words) if self.starts_scripts else set[str]()

    def _options_of_script(self, words: Sequence[str]) -> set[str]:
        styled = [word for word in words if word.startswith(f"args.{STYLE}=")]
        if styled and styled[-1].partition("=")[2] not in DASHED_STYLES:
            return set()
        scripts = [
            word.removeprefix("script=")
            for word in words
            if word.startswith("script=") or word.endswith(".py")
        ]
        return option_names.options_of(scripts[0]) if scripts else set()

    def readings(self) -> Iterator[WordReading]:
        while self.remaining:
            word = self.remaining.pop(0)
            if word == "--" and self.has_script:  # What follows belongs to the script.
                yield WordReading(word, (), is_mended=True)
                yield from self._readings_of_script()
            elif word.startswith("-") and not _is_number(word):
                yield self._flag(word)
            elif word.startswith(("+", "~")) and not word.startswith("~/"):  # Hydra's syntax
                yield WordReading(word, (word,), is_unknown="=" not in word)
            elif "=" in word.lstrip("="):
                yield self._pair(word)
            elif word.endswith(".py") and self.starts_scripts and not self.has_script:
                yield WordReading(word, (f"script={word}",), is_mended=True)
                yield from self._readings_of_script()
            else:
                yield self._bare_word(word)

    def _next_value(self) -> str | None:
        """Take the next word if it is the value of a flag."""
        if self.remaining and not (
            self.remaining[0].startswith("-") and not _is_number(self.remaining[0])
        ):
            following = self.remaining[0]
            if "=" not in following:
                return self.remaining.pop(0)
        return None

    # ---- reading one part

    def _flag(self, word: str) -> WordReading:
        name, sign, value = word.partition("=")
        action = self.flags.get(name)
        if action is not None:  # One of Hydra's own flags.
            takes_next = action.nargs is None and not sign and self.remaining
            words = (word, self.remaining.pop(0)) if takes_next else (word,)
            return WordReading(" ".join(words), words)
        if not word.startswith("--") or not name.strip("-"):
            return WordReading(word, (word,), is_unknown=True)
        typed_words = (word,)
        key_name = name.removeprefix("--").replace("-", "_")
        key = self.names.key_of(key_name)
        negated = (
            self.names.key_of(key_name.removeprefix("no_")) if key_name.startswith("no_") else None
        )
        if key is None and negated is not None and self.names.takes_no_value(negated):
            return WordReading(word, (f"{negated}=false",), is_mended=True)
        is_of_script = key is None and self._is_of_script(name, has_value=bool(sign))
        is_switch = (
            key is None and not is_of_script and self.names.option_named(key_name) is not None
        )
        takes_value = not is_switch and (key is None or not self.names.takes_no_value(key))
        if not sign:
            following = self.remaining[0].lower() if self.remaining else ""
            if takes_value or following in ("true", "false"):
                next_word = self._next_value()
                typed_words = (word,) if next_word is None else (word, next_word)
                value = next_word or ""
            value = value or "true"
        typed = " ".join(typed_words)
        reading = None if is_of_script else self._reading_of(key_name, value, typed)
        if reading is not None:
            return reading
        if self.has_script:
            return self._argument(name.removeprefix("--"), value, typed)
        close_names = difflib.get_close_matches(
            key_name, self.names.types, n=1, cutoff=LEAST_SIMILARITY
        )
        corrected = self._reading_of(close_names[0], value, typed) if close_names else None
        return corrected or WordReading(typed, typed_words, is_unknown=True)

    def _pair(self, typed: str) -> WordReading:
        key, _, value = typed.partition("=")
        is_hydras = key.startswith(("hydra.", "hydra/")) and key != LAUNCHER_GROUP
        if not key or is_hydras or value[:1] in ("", "="):
            return WordReading(typed, (typed,))
        reading = self._reading_of(key, value, typed)
        if reading is not None:
            return reading
        if self.has_script and not difflib.get_close_matches(
            key, self.names.types, 1, LEAST_SIMILARITY
        ):
            return self._argument(key, value, typed)
        return WordReading(typed, (typed,), is_unknown=True)

    def _is_of_script(self, flag: str, has_value: bool) -> bool:
        """True for a flag that the script's source names, or that has a value.

        A flag that is no key here may still be the name of an option, such as `--kineto`, which
        takes no value.
        """
        if not self.has_script:
            return False
        following = self.remaining[0] if self.remaining else "-"
        is_followed_by_value = not following.startswith("-") and "=" not in following
        return (
            has_value
            or is_followed_by_value
            or option_names.spelling(flag[2:], self.script_options) in self.script_options
        )

    def _argument(self, name: str, value: str, typed: str) -> WordReading:
        """Return the reading of an argument of the script, in the script's own spelling."""
        spelled = option_names.spelling(name, self.script_options)
        return WordReading(typed, (f"args.{spelled}={value}",), is_mended=True)

    def _bare_word(self, word: str) -> WordReading:
        is_name = self.names.key_of(word) is not None and word.replace("_", "").isalnum()
        if is_name and self.remaining[:1] == ["="] and len(self.remaining) > 1:
            value = self.remaining[1]
            del self.remaining[:2]
            return self._renamed(word, value, (word, "=", value))
        if is_name and self.names.takes_no_value(str(self.names.key_of(word))):
            return self._renamed(word, "true", (word,))
        if (
            is_name
            and self.remaining
            and "=" not in self.remaining[0]
            and self.remaining[0][:1] != "-"
        ):
            value = self.remaining.pop(0)
            return self._renamed(word, value, (word, value))
        group = "model" if paths_as_values.is_model(word) else "dataset"
        if paths_as_values.is_hub_name(word):
            group = "model"
        meaning = paths_as_values.meaning(group, word, self.workload)
        if meaning is not None:
            return WordReading(word, self._words_of_path(meaning), is_mended=True, path=meaning)
        option = self.names.option_named(word)
        if option is not None:
            return WordReading(word, self._with_path(*option), is_mended=True)
        return WordReading(word, (word,), is_unknown=True)

    def _renamed(self, name: str, value: str, typed_words: tuple[str, ...]) -> WordReading:
        typed = " ".join(typed_words)
        reading = self._reading_of(name, value, typed)
        if reading is None:
            return WordReading(typed, typed_words, is_unknown=True)
        return WordReading(
            typed, reading.words, is_mended=True, path=reading.path, variables=reading.variables
        )

    # ---- finding the meaning

    def _reading_of(self, name: str, value: str, typed: str) -> WordReading | None:
        """Return the reading of a name and a value; None if they mean nothing here."""
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
        if key == "model" and self._is_of_a_folder(value):
            meaning = paths_as_values.of_a_folder(self.workload.entry)
            return WordReading(typed, meaning.words, is_mended=typed != "model=hf", path=meaning)
        if value not in self.names.options_of(key):
            meaning = self._meaning(key, value)
            if meaning is not None:
                is_sure = typed.startswith(f"{key}=") and self._is_sure(meaning)
                words = self._words_of_path(meaning)
                return WordReading(typed, words, is_mended=not is_sure, path=meaning)
        return self._reading_of_value(key, value, typed)

    def _is_of_a_folder(self, model: str) -> bool:
        """True for a transformers model, if the command names no engine that should tune it."""
        return model == HF_MODEL and "engine" not in self.given and self.workload.entry == TUNING

    def _is_sure(self, meaning: PathMeaning) -> bool:
        return meaning.is_here and meaning.entry == self.workload.entry

    def _reading_of_value(self, key: str, value: str, typed: str) -> WordReading | None:
        translated = self.names.value_of(key, value)
        if translated is None:
            return None
        if key == "name" and not typed.startswith("name="):  # Other programs give a folder.
            translated = translated.rstrip("/").rpartition("/")[2]
        if typed == f"{key}={translated}":
            return WordReading(typed, (typed,))
        return WordReading(typed, self._with_path(key, translated), is_mended=True)

    def _meaning(self, group: str, value: str) -> PathMeaning | None:
        """Return what a path means, or what all paths of a sweep mean."""
        if group not in ("dataset", "model"):  # no roles: the groups whose options may be paths.
            return None
        parts = parts_of(value)
        if len(parts) == 1 or Path(value).exists():
            return paths_as_values.meaning(group, value, self.workload)
        meanings = [paths_as_values.meaning(group, part, self.workload) for part in parts]
        known_meanings = [meaning for meaning in meanings if meaning is not None]
        first_words = {meaning.words[:-1] for meaning in known_meanings}
        if len(known_meanings) < len(meanings) or len(first_words) != 1:
            return None
        key = known_meanings[0].words[-1].partition("=")[0]
        values = [meaning.words[-1].partition("=")[2] for meaning in known_meanings]
        fetches = [meaning.fetch for meaning in known_meanings if meaning.fetch is not None]
        return PathMeaning(
            (*known_meanings[0].words[:-1], f"{key}={','.join(values)}"),
            known_meanings[0].entry,
            " && ".join(fetches) or None,
            all(meaning.is_there for meaning in known_meanings),
        )

    def _words_of_path(self, meaning: PathMeaning) -> tuple[str, ...]:
        """Return the words for a path, without words for keys that the command sets itself."""
        *first_words, last_word = meaning.words
        key, _, value = last_word.partition("=")
        groups = ("dataset", "model")  # no roles: the groups whose options may be paths.
        other_words = [
            word
            for word in first_words
            if word.partition("=")[0] in groups or word.partition("=")[0] not in self.given
        ]
        return *other_words, f"{key}={value_quoting.readable(key, value, sweeps=True)}"

    def _with_path(self, key: str, value: str) -> tuple[str, ...]:
        """Return a key with its value, and the path that this option needs."""
        path_word = PATH_OF_OPTION.get(value) if key in self.names.groups else None
        lacks = path_word is not None and path_word.partition("=")[0] not in self.given
        return (
            (f"{key}={value}", path_word)
            if path_word is not None and lacks
            else (f"{key}={value}",)
        )

    # ---- scripts

    def _readings_of_script(self) -> Iterator[WordReading]:
        """Read what follows a script: its own flags and words, and keys of multicard."""
        positionals = list[str]()
        while self.remaining:
            word = self.remaining.pop(0)
            name, sign, value = word.partition("=")
            if word in ("-h", "--help"):  # Shows the help of the entry, not of the script.
                yield WordReading(word, (word,))
            elif word.startswith("--") and len(word) > len("--"):
                next_word = None if sign else self._next_value()
                typed = word if next_word is None else f"{word} {next_word}"
                value = value if sign else next_word or "true"
                yield self._argument(name[2:], value, typed)
            elif sign and self.names.has(name):
                yield WordReading(word, (word,))
            elif sign and not word.startswith("-"):
                yield WordReading(
                    word, (f"args.{STYLE}=hydra", f"args.{name}={value}"), is_mended=True
                )
            else:
                positionals.append(word)
        if positionals:
            word_list = value_quoting.readable("words", f"[{','.join(positionals)}]", sweeps=False)
            yield WordReading(" ".join(positionals), (f"words={word_list}",), is_mended=True)


def _is_number(word: str) -> bool:
    return word[1:2].isdigit()
