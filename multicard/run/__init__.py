"""One run from its configuration to result.json, and whatever may end it early."""
