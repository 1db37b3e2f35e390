"""Altair charts: `spec()` once, `rows(...)` each time; rows need neither Altair nor pandas."""
