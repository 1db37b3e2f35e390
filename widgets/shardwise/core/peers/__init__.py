"""Why calculators disagree: the peers' published formulas, put to one scenario side by side.

Each module holds one peer's formula as its code computes it, defects included; nothing here feeds
the estimate. `table.py` lines them up.
"""
