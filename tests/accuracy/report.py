"""Everything that the memory model is held against, as one report.

    python tests/accuracy/report.py               # traces, published measurements, speed
    python tests/accuracy/report.py --no-speed    # the same figures on every machine

Each part is a script of its own, named in its heading, that prints more. Model states, Megatron's
and Bridge's unit-test values, and users' cases are exact comparisons: they are tests, listed last.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import bench_estimates
import compare_phases
import compare_published
import compare_traces

EXACT = (
    (
        "tests/core/test_states.py",
        "states on each rank: torch, DeepSpeed, the ZeRO paper",
    ),
    ("tests/core/test_rank_groups.py", "first, middle and last ranks: FSDP2, FSDP1, DeepSpeed"),
    ("tests/core/test_dealt_out.py", "torch's ZeroRedundancyOptimizer, rank by rank"),
    ("tests/accuracy/test_ranks_against_traces.py", "steps traced on 43 ranks"),
    ("tests/accuracy/test_loading.py", "storages as FSDP2 wraps a model"),
    ("tests/accuracy/test_megatron_values.py", "unit-test values of Megatron-LM and its Bridge"),
    ("tests/core/test_published_counts.py", "published parameter counts"),
    ("tests/core/test_model_exact.py", "every tensor of every catalogue model, by transformers"),
    ("tests/core/test_peers.py", "what other calculators print"),
    ("tests/accuracy/test_user_cases.py", "cases that users reported"),
)


def headed(title: str, command: str) -> None:
    """A heading with the command that prints more."""
    print(f"\n{title}\n{'=' * len(title)}\n$ python {command}\n")


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-speed", action="store_true", help="leave the timings out")
    options = parser.parse_args()
    headed("Traced steps", "tests/accuracy/compare_traces.py")
    print("\n".join(compare_traces.report_lines(compare_traces.load_cases(), 10)))
    headed("Traced steps, phase by phase", "tests/accuracy/compare_phases.py")
    print("\n".join(compare_phases.report_lines(1)))
    headed("Published measurements", "tests/accuracy/compare_published.py")
    print("\n".join(compare_published.report_lines(compare_published.sources(), 3)))
    if not options.no_speed:
        headed("Speed, one core", "tests/accuracy/bench_estimates.py")
        bench_estimates.main()
    title = "Exact comparisons, as tests"
    print(f"\n{title}\n{'=' * len(title)}")
    root = Path(__file__).parents[2]
    for path, what in EXACT:
        assert (root / path).is_file(), path
        print(f"$ python -m pytest {path}    # {what}")


if __name__ == "__main__":
    main()
