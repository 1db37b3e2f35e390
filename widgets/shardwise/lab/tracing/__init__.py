"""The parts of `shardwise.lab.trace`: a ledger of live storages and the runs that fill it."""
