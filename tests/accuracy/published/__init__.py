"""Published measurements of training memory, one module a source, as scenarios to compare with."""
