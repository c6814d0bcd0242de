"""The command around Hydra: refusals in one line, help, the exit code."""
