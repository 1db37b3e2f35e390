"""What all tests share: no example of hypothesis is held to a time, busy machines included.

Pages that browser tests open in a server lie under `tests/`; they are no notebooks to run.
"""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")

collect_ignore_glob = ["browser/pages/*.ipynb"]
