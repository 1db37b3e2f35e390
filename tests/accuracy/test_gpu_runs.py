"""The script for a machine with a GPU runs here on fake tensors."""

from __future__ import annotations

import gpu_runs


def test_a_case_runs_in_a_process_of_its_own() -> None:
    """GPT-2 under autocast gives a traced peak and an estimate within 2 %."""
    index = next(i for i, case in enumerate(gpu_runs.CASES) if case[0] == "gpt2")
    found = gpu_runs.in_own_process(index, "fake")
    assert isinstance(found, dict), found
    assert abs(found["estimated"] / found["measured"] - 1) < 0.02


def test_a_case_that_cannot_run_is_a_line_and_not_the_end() -> None:
    """Without a GPU the table says why; nothing is raised."""
    import torch

    if torch.cuda.is_available():
        return
    found = gpu_runs.in_own_process(0, "cuda")
    assert isinstance(found, str)
    assert "no GPU" in found
