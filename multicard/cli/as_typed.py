"""Keeps values as they are typed.

Hydra reads `1.10`, `1e3` or `007` as a number, and forgets how it was written. Quotes prevent this.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Optional

from antlr4 import CommonTokenStream, InputStream, ParserRuleContext
from hydra.core.override_parser.overrides_visitor import HydraErrorListener
from hydra.errors import HydraException
from hydra.grammar.gen.OverrideLexer import OverrideLexer
from hydra.grammar.gen.OverrideParser import OverrideParser

from multicard import workloads
from multicard.config.script import STYLE, Style
from multicard.run.workload import Workload

TEXTS = (str, Optional[str], list[str], Optional[list[str]])  # Types of keys whose values are text.
LISTS = (list[str], Optional[list[str]])
LITERALS = f"args.{STYLE}={Style.equals}"  # With this style, true is a value, not a flag.


def with_quotes(words: list[str], workload: Workload) -> list[str]:
    """Return the words, with quotes around values that Hydra would change.

    This concerns keys whose values are text, and keys of any name, which have no type.
    """
    types = workloads.known_keys(workload)
    has_literals = LITERALS in words
    return [_with_quotes(word, types, workload, has_literals) for word in words]


def _with_quotes(
    word: str, types: Mapping[str, set[Any]], workload: Workload, has_literals: bool
) -> str:
    key, sign, _ = word.lstrip("+").partition("=")
    key_types = types.get(key, set())
    is_free = key.partition(".")[0] in workload.free
    is_text = bool(key_types) and all(key_type in TEXTS for key_type in key_types)
    if not sign or not (is_free or is_text):
        return word
    is_list = any(key_type in LISTS for key_type in key_types)
    tokens = [
        token
        for token in _whole_values(word)
        if _is_changed(token, is_text or has_literals, is_list)
    ]
    for token in sorted(tokens, key=lambda key_type: -key_type.start):
        word = f"{word[: token.start]}'{token.text}'{word[token.stop + 1 :]}"
    return word


def _is_changed(token: Any, is_text: bool, is_list: bool) -> bool:
    """True for a value that Hydra would not write in the same way again."""
    if token.type == OverrideLexer.INT:
        return str(int(token.text)) != token.text
    if token.type == OverrideLexer.FLOAT:
        return str(float(token.text)) != token.text
    if token.type == OverrideLexer.BOOL:  # The value `true` makes an argument a flag.
        return is_text or (token.in_list and token.text != token.text.lower())
    return token.type == OverrideLexer.NULL and (is_list or token.in_list)


def _whole_values(word: str) -> Iterator[Any]:
    """Yield the parts of a word that are each a complete value, as tokens with their positions.

    Yields nothing if Hydra cannot read the word.
    """
    try:
        lexer = OverrideLexer(InputStream(word))
        parser = OverrideParser(CommonTokenStream(lexer))
        for recognizer in (lexer, parser):
            recognizer.removeErrorListeners()
            recognizer.addErrorListener(HydraErrorListener())
        tree = parser.override()
    except HydraException:
        return
    yield from _primitives(tree, in_list=False)


def _primitives(tree: Any, in_list: bool) -> Iterator[Any]:
    if isinstance(tree, OverrideParser.FunctionContext) and not tree.getText().startswith(
        "choice("
    ):
        return  # Arguments of functions such as range() are numbers.
    if isinstance(tree, OverrideParser.PrimitiveContext):
        children: list[Any] = [*tree.getChildren()]
        tokens = [child.symbol for child in children if child.symbol.type != OverrideLexer.WS]
        if len(tokens) == 1:
            tokens[0].in_list = in_list
            yield tokens[0]
        return
    if isinstance(tree, ParserRuleContext):
        inside = in_list or isinstance(tree, OverrideParser.ListContainerContext)
        for child in tree.getChildren():
            yield from _primitives(child, inside)
