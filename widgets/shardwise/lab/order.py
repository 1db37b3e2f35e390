"""What passes between the kernel and a rank: the order before it runs, the report after."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardwise.lab.program import Program

ORDER_FILE = "order.pickle"


@dataclass(frozen=True)
class Order:
    """What the kernel asks the server for: a program on so many ranks, and its surroundings."""

    program: Program
    world: int
    device: str  # cpu | cuda
    backend: str  # gloo | nccl
    timeout: float
    collective_timeout: float
    grace: float
    directory: str
    path: tuple[str, ...]
    environment: dict[str, str] = field(repr=False)


@dataclass(frozen=True)
class Report:
    """What a rank says of itself when its program came to an end."""

    status: str  # ok | error | exit
    seconds: float
    values: dict[str, bytes] = field(default_factory=dict)
    exception: str = ""
    message: str = ""
    line: int = 0
    trace: str = ""
    exit_code: int = 0
