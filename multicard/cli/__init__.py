"""The command around Hydra: refusals in one line, help, and the exit code."""
