"""One run from its configuration to result.json, and what may end it early."""
