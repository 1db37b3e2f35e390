"""Pages that browser tests open in a server lie under `tests/`; they are no notebooks to run."""

collect_ignore_glob = ["browser/pages/*.ipynb"]
