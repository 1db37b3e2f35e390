"""The parts of `shardwise.lab.measure`: each reads one quantity off the running program."""
