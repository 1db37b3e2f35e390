"""Training steps as streams of requests and releases, for `memory/allocator.py` to replay."""
