"""How long a step takes, as pure mathematics: no files, no records, numpy and scipy only."""
