"""What each kind of operator saves for backward, one module a kind."""

from shardwise.core.memory.operators.run import Kernel, Tokens

__all__ = ["Kernel", "Tokens"]
