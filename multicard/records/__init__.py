"""Run folders and records on disk: their schema, identity, comparison and tables."""
