"""The button that starts ranks from a page, pressed without one."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("ipywidgets")

from shardwise.lab import RunButton

PRINTS = "print('rank', rank, 'of', world)"


def pressed(button: RunButton, world: int) -> str:
    """What the page shows once the run that a press started is over."""
    choice, press = button.children[0].children
    choice.value = world
    press.click()
    for thread in threading.enumerate():
        if thread.name == "ranks of a button":
            thread.join(60)
    assert not press.disabled
    return button.children[1].value


def test_nothing_runs_before_the_press():
    """A page that only shows the button starts no process."""
    button = RunButton(PRINTS)
    assert button.result is None
    assert "Nothing has run" in button.children[1].value


def test_a_press_runs_the_ranks_and_shows_their_output():
    """The chosen number of ranks run; the result can be read and observed."""
    button = RunButton(PRINTS, worlds=(1, 2))
    seen = []
    button.observe(lambda change: seen.append(change["new"].world), "result")
    shown = pressed(button, 2)
    assert "rank 0 of 2" in shown
    assert "rank 1 of 2" in shown
    assert button.result.ok
    assert seen == [2]


def test_what_show_returns_takes_the_place_of_the_output():
    """Text is escaped, so what a rank returns cannot become markup."""
    button = RunButton("x = '<b>'", worlds=(1,), show=lambda result: result["x"][0], outputs=("x",))
    assert pressed(button, 1) == "<pre>&lt;b&gt;</pre>"


def test_a_failure_names_its_cause():
    """A rank that raises is shown with its cause, also where `show` could not read a result."""
    button = RunButton("raise KeyError('labels')", worlds=(1,), show=lambda result: 1 / 0)
    assert "KeyError" in pressed(button, 1)
    assert not button.result.ok


def test_a_press_returns_while_the_ranks_are_at_work():
    """The kernel is free at once, and a second press meanwhile starts nothing."""
    button = RunButton("import time; time.sleep(1)", worlds=(1,))
    thread = button.start()
    assert thread.is_alive()
    assert button.children[0].children[1].disabled
    assert button.start() is thread
    thread.join(60)
    assert button.result.ok


def test_a_request_that_cannot_be_met_is_a_sentence():
    """Too many ranks for the machine: a sentence, and the button works again."""
    button = RunButton(PRINTS, worlds=(1, 100_000))
    shown = pressed_without_result(button)
    assert "world" in shown
    assert button.result is None
    assert "rank 0 of 1" in pressed(button, 1)


def pressed_without_result(button: RunButton) -> str:
    """The page after a press that starts no rank."""
    choice, press = button.children[0].children
    choice.value = 100_000
    thread = button.start()
    thread.join(30)
    assert not press.disabled
    return button.children[1].value
