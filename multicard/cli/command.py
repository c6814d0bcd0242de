"""The command around Hydra: help, refusals in one line, the final table and the exit code."""

import os
import signal
import sys

import hydra
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from multicard import workloads
from multicard.cli import command_line
from multicard.cli import help as command_help
from multicard.config import hydra_config
from multicard.messages import say
from multicard.ranks import interruption
from multicard.run.workload import Workload
from multicard.sweep.command import Command
from multicard.sweep.objective import NoFigureError, NothingMeasuredError
from multicard.sweep.task import Task


def execute(workload: Workload, usage: str | None) -> int:
    """Have Hydra run the command of `sys.argv`, print the table of what it measured and return the exit code.

    Args:
        usage: the beginning of `--help`: a sentence, an empty line, and examples.
    """
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises what it would print over many lines
    words = sys.argv[1:] = command_line.switched(sys.argv[1:], workload)  # where Hydra reads them
    command = Command(workload, words)
    interruption.answer(_keyboard_interrupt)
    try:
        overrides = command.overrides = command_line.overrides(words)
        command_line.check(overrides, workload)
        if {"-h", "--help"} & {*words}:
            print(command_help.text(workload, usage or "", command_line.first_values(overrides)))
            return 0
        name = workload.entry.removesuffix(".py")
        hydra.main(version_base="1.3", config_path=str(workloads.CONF), config_name=name)(Task(command).measure)()
    except (HydraException, OmegaConfBaseException) as error:  # some are a ValueError too
        causes = [str(part) for part in (error, error.__cause__) if part is not None]
        return _refuse(command, command_line.explain(chr(10).join(causes), workload))
    except (ValueError, hydra_config.Refused) as error:  # about a command as a whole: nothing was started
        return _refuse(command, str(error))
    except NoFigureError as error:
        print(f"the sweeper ended at a cell without its figure: {error}", file=sys.stderr)
        command.abandoned = True
    except NothingMeasuredError:
        say("these are the first cells of a search, which chooses the next by what they measure")
    except KeyboardInterrupt as interrupted:
        if not command.abandoned:  # else it is said
            print(f"interrupted by {str(interrupted) or 'SIGINT'}", file=sys.stderr)
        command.abandoned = True
    finally:
        interruption.ignore_further()
        hydra_config.remove_unused()
    return command.close()


def _refuse(command: Command, message: str) -> int:
    line = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in message)
    print(f"refused: {line}", file=sys.stderr)
    command.close()
    return 1


def _keyboard_interrupt(number: int) -> KeyboardInterrupt:
    return KeyboardInterrupt(signal.Signals(number).name)
