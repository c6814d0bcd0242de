"""The command around Hydra: help, refusals in one line, the final table and the exit code."""

import os
import signal
import sys
from collections.abc import Callable

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from multicard.cli import command_line
from multicard.cli import help as command_help
from multicard.config import callbacks
from multicard.ranks import interruption
from multicard.run import session
from multicard.run.workload import Workload
from multicard.sweep.objective import NoFigureError, NothingMeasuredError


def execute(main: Callable[[], None], workload: Workload, usage: str | None) -> int:
    """Call a function that `hydra.main` decorated, print the table of what it measured and return the exit code.

    Args:
        usage: the beginning of `--help`: a sentence, an empty line, and examples.
    """
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises what it would print over many lines
    session.SESSION.workload = workload
    words = sys.argv[1:] = command_line.switched(sys.argv[1:], workload)
    interruption.answer(_keyboard_interrupt)
    try:
        overrides = session.SESSION.overrides = command_line.overrides(words)
        command_line.check(overrides, workload)
        if {"-h", "--help"} & {*words}:
            print(command_help.text(workload, usage or "", command_line.first_values(overrides)))
            return 0
        if command_line.plans_all(overrides):
            from multicard.sweep import full_scale  # which nothing else needs

            session.say("\n".join(full_scale.text(workload, words)))
            return 0
        main()
    except (HydraException, OmegaConfBaseException) as error:  # some are a ValueError too
        causes = [str(part) for part in (error, error.__cause__) if part is not None]
        return _refuse(command_line.explain(chr(10).join(causes), workload))
    except (ValueError, callbacks.Refused) as error:  # about a command as a whole: nothing was started
        return _refuse(str(error))
    except NoFigureError as error:
        print(f"the sweeper ended at a cell without its figure: {error}", file=sys.stderr)
        session.SESSION.abandoned = True
    except NothingMeasuredError:
        session.say("these are the first cells of a search, which chooses the next by what they measure")
    except KeyboardInterrupt as interrupted:
        if not session.SESSION.abandoned:  # else it is said
            print(f"interrupted by {str(interrupted) or 'SIGINT'}", file=sys.stderr)
        session.SESSION.abandoned = True
    finally:
        interruption.ignore_further()
        callbacks.remove_unused()
    return session.close()


def _refuse(message: str) -> int:
    line = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in message)
    print(f"refused: {line}", file=sys.stderr)
    session.close()
    return 1


def _keyboard_interrupt(number: int) -> KeyboardInterrupt:
    return KeyboardInterrupt(signal.Signals(number).name)
