"""Commands beside the two entries.

python -m multicard plan JOBS.yaml      what runs where and when on a node (docs/plan.md)
python -m multicard profile FILE...     the metrics of profiler files as one table (docs/measuring.md)
"""

import sys
from importlib import import_module

COMMANDS = {"plan": "multicard.decide.plan.command", "profile": "multicard.observe.profiles.command"}


def main(arguments: list[str]) -> int:
    """Run a command and return its exit code."""
    if arguments and arguments[0] in COMMANDS:
        return import_module(COMMANDS[arguments[0]]).main(arguments[1:])
    if {"-h", "--help"} & {*arguments[:1]}:
        print(__doc__)
        return 0
    asked = f"{arguments[0]}: no such command" if arguments else "name a command"
    print(f"refused: {asked}; there are {', '.join(COMMANDS)}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
