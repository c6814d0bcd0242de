"""The two papers, arXiv 2505.22905 and 2503.15252, as data: what they print, and in which setting.

| file | what it has |
|---|---|
| figures.csv | every printed figure |
| notes.csv | what to know of the figures, and misprints |
| settings.yaml | settings, as printed, and as taken where the papers print nothing |
| in_full.csv | what each experiment takes on the papers' node |

`printed.py` reads these files and imports nothing of multicard, so that everybody may read them.
"""
