"""Runs, measures and explains image recognition and LLM tuning on a node with several GPUs."""
