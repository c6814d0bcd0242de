"""What no refusal may offer: an override of a value that is already in force."""

import shlex
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from multicard.messages import Message

_last: list[tuple[DictConfig, Sequence[str]]] = []


def note(config: DictConfig, words: Sequence[str]) -> None:
    """Keep the configuration that was composed last,
    and the words that made it: what is refused next is of it.
    """
    _last[:] = [(config, words)]


def forget() -> None:
    """No configuration is in force, at the beginning of a test."""
    _last.clear()


def check(message: Message) -> None:
    """Fail if a remedy, of the message or of one that is a fact of it,
    changes nothing in the configuration.
    """
    for remedy in message.remedies:
        assert not changes_nothing(remedy), (
            f"{message.code}: `{remedy}` is in force already: {message.sentence}"
        )
    for fact in message.facts.values():
        if isinstance(fact, Message):
            check(fact)


def changes_nothing(remedy: str) -> bool:
    """True of words of which each sets a key to the value that it has; of anything else False."""
    if not _last:
        return False
    try:
        words = OverridesParser.create().parse_overrides(shlex.split(remedy))
        return all(
            not word.is_sweep_override() and _is_set(word.key_or_group, word.value())
            for word in words
        )
    except (ValueError, HydraException, OmegaConfBaseException):
        return False


def _is_set(key: str, value: Any) -> bool:
    config, words = _last[0]
    found = OmegaConf.select(config, key, default="not there")
    if isinstance(found, DictConfig) and isinstance(value, str):
        if any(word.startswith(f"{key}.name=") for word in words):
            return False  # another option was renamed
        found = found.get("name")
    if OmegaConf.is_config(found):
        found = OmegaConf.to_container(found)
    return _plain(found) == _plain(value)


def _plain(value: Any) -> Any:
    """A value as text: an enumeration by its name, a quoted text by what is within."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, bool | None):
        return value
    text = str(getattr(value, "text", getattr(value, "name", value)))
    try:
        return float(text)
    except ValueError:
        return text
