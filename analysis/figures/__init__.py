"""Figures of runs as Vega-Lite with its data: the papers' experiments, and losses, phases and scaling of any runs."""
