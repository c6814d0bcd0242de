"""`multicard completion SHELL`: a script that completes commands, their options,
and Hydra's groups and keys.

    source <(multicard completion bash)    in ~/.bashrc; zsh in ~/.zshrc, after compinit
    multicard completion fish | source     in ~/.config/fish/config.fish

Overrides of `vision` and `tune` are completed by Hydra; where no word fits,
the shell completes files.
"""

import contextlib
import io
import os
import re
import sys

from multicard import workloads
from multicard.__main__ import COMMANDS, ENTRIES
from multicard.__main__ import main as run
from multicard.messages import Message, say, usage

# Each script passes on the line up to the cursor. Bash treats the part before = as another word.
SCRIPTS = {
    "bash": (
        """_multicard() {
  local line="${COMP_LINE:0:COMP_POINT}" word
  word="${line##* }"
  mapfile -t COMPREPLY < <(multicard completion words "$line" 2>/dev/null)
  [[ ${COMPREPLY[0]} == *[=./] ]] && compopt -o nospace
  [[ $word == *=* && $COMP_WORDBREAKS == *=* ]] && COMPREPLY=("${COMPREPLY[@]#"${word%=*}="}")
}
complete -o default -F _multicard multicard"""
    ),
    "zsh": (
        """_multicard() {
  local -a found=(${(f)"$(multicard completion words "${(j: :)words[1,CURRENT]}" 2>/dev/null)"})
  (( $#found )) || { _files; return; }
  compadd -S '' -- ${(M)found:#*[=./]}
  compadd -- ${found:#*[=./]}
}
compdef _multicard multicard"""
    ),
    "fish": (
        """complete -c multicard -f -a '(multicard completion words (commandline -cp) 2>/dev/null)'
complete -c multicard -n 'test (count (commandline -opc)) -gt 1; and not __fish_seen_subcommand_from vision tune' -F"""
    ),
}


def main() -> int:
    """Print a shell's script, or the words to which the last word of a line can be completed."""
    shell, *line = sys.argv[1:] or [""]
    help_text = usage(__doc__, __file__)
    texts = SCRIPTS | {"-h": help_text, "--help": help_text}
    if shell == "words":
        say("\n".join(candidates(" ".join(line))))
    elif shell in texts:
        say(texts[shell].rstrip())
    else:
        say(
            Message(
                "completion.no-script",
                f"refused: {shell or 'no shell'}: there are scripts for {', '.join(SCRIPTS)}",
                shell=shell,
                choices=list(SCRIPTS),
            ),
            error=True,
        )
    return 0 if shell in ("words", *texts) else 1


def candidates(line: str) -> list[str]:
    """Return the words to which the last word of a line can be completed."""
    name, *words = line.lstrip().split(" ")[1:] or [""]
    if not words:
        return [command for command in COMMANDS if command.startswith(name)]
    if name not in COMMANDS:
        return []
    if name in ENTRIES:
        os.environ["COMP_LINE"] = " ".join(
            ["multicard", *(word for word in words if word[:1] != "-")]
        )
        proposals = _output_of([name, "-sc", "query=bash"]).split()
        (group, _, _) = words[-1].partition("=")
        workload = workloads.of_entry(f"{ENTRIES[name]}.py")
        # Hydra also proposes the options of other entries.
        entry_options = (
            workloads.every_option(workload, group) if group in workload.options else None
        )
        return [
            word
            for word in proposals
            if entry_options is None or word.partition("=")[2] in entry_options
        ]
    options = dict.fromkeys(re.findall(r"(?<![\w-])--[a-z-]+", _output_of([name, "--help"])))
    return [
        option for option in options if words[-1].startswith("-") and option.startswith(words[-1])
    ]


def _output_of(words: list[str]) -> str:
    """Return what a command prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        run(words)
    return printed.getvalue()
