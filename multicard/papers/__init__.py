"""The two papers, arXiv 2505.22905 and 2503.15252, as data: their figures and settings.

| file | content |
|---|---|
| figures.csv | every printed figure |
| notes.csv | notes on the figures, and misprints |
| settings.yaml | settings as printed, and as chosen if the papers print nothing |
| in_full.csv | what each experiment takes on the papers' node |

`printed.py` reads these files and imports nothing of multicard, so that any part may use it.
"""
