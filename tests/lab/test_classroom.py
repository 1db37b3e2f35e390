"""The classroom check: what it finds, what it says, and its exit code."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from shardwise.core.units import GIB
from shardwise.lab import classroom
from shardwise.lab.classroom import Finding


def levels(*found: Finding) -> list[str]:
    """The level of each."""
    return [each.level for each in found]


def test_each_finding_turns_at_its_threshold():
    """Just enough is ok; a byte less of memory or disk, or an older torch, is not."""
    memory = classroom.ENOUGH_MEMORY_BYTES
    assert levels(*map(classroom.memory_finding, (memory, memory - 1, None))) == [
        "ok", "missing", "slow",
    ]  # fmt: skip
    disk = [classroom.disk_finding(size, "here") for size in (GIB, GIB - 1)]
    assert levels(*disk) == ["ok", "missing"]
    versions = ("2.8.0", "2.13.0+cu128", "2.7.1", "1.13.1", None)
    found = levels(*map(classroom.torch_finding, versions))
    assert found == ["ok", "ok", "missing", "missing", "missing"]
    assert levels(*map(classroom.cores_finding, (1, 2, 64))) == ["slow", "ok", "ok"]


def test_what_is_missing_comes_with_what_to_do():
    """A sentence that names the figure and the remedy."""
    assert "close other programs" in classroom.memory_finding(GIB).sentence
    assert "TMPDIR" in classroom.disk_finding(0, "here").sentence
    assert "pip install" in classroom.torch_finding(None).sentence


def test_ranks_with_a_wrong_or_late_answer_are_noticed():
    """A sum that is not 6 is missing, a late one slow."""
    assert classroom.answer_finding({6.0, 5.0}, "4 ranks", 0.1, 1).level == "missing"
    assert classroom.answer_finding({6.0}, "4 ranks", 2.0, 1).level == "slow"


def test_ranks_that_cannot_start_are_one_sentence(monkeypatch):
    """A failure of the lab ends up as a finding, not as a traceback."""

    def broken(*args, **kwargs):
        raise RuntimeError("the fork server ended with 1\nand more")

    monkeypatch.setattr("shardwise.lab.ranks.run", broken)
    (found,) = classroom.ranks_findings()
    assert found == Finding("missing", "4 ranks did not answer: the fork server ended with 1")


@pytest.mark.parametrize(
    ("given", "code", "words"),
    [
        (("ok", "ok"), 0, "Ready: the lessons run here."),
        (("ok", "slow"), 0, "slower than they should"),
        (("missing", "slow"), 1, "one thing is missing"),
        (("missing", "missing"), 1, "2 things are missing"),
    ],
)
def test_the_verdict_counts_what_is_missing(given, code, words):
    """Only something missing makes the exit code 1."""
    found_code, line = classroom.verdict([Finding(level, "x") for level in given])
    assert found_code == code
    assert words in line


def test_without_torch_no_rank_is_started(monkeypatch):
    """The ranks are not tried when they cannot work."""
    versions = {"torch": None}
    monkeypatch.setattr(classroom, "_version", lambda name: versions.get(name, "4.0"))
    monkeypatch.setattr(classroom, "ranks_findings", lambda: pytest.fail("started ranks"))
    assert "missing" in levels(*classroom.findings())


def test_the_command_runs_real_ranks_and_agrees_with_its_exit_code():
    """One sentence a line, four ranks' answer among them, the verdict last."""
    done = subprocess.run(
        [sys.executable, "-m", "shardwise.lab.classroom"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert "4 ranks answer" in done.stdout, done.stderr
    assert all(line.split()[0] in ("ok", "slow", "missing") for line in lines[:-1])
    assert lines[-1].startswith("Ready" if done.returncode == 0 else "Not ready")
