"""Pictures of a run: valid SVG, the same in words, nothing outside the frame."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from shardwise.lab.measuring.figures import Event, pipeline_times
from shardwise.lab.pictures import bars, timeline

SVG = "{http://www.w3.org/2000/svg}"


def rectangles(picture):
    """(x, y, width, height) of every rectangle, and the drawing's own width and height."""
    root = ET.fromstring(picture.svg)
    _, _, width, height = map(float, root.get("viewBox").split())
    found = [
        tuple(float(rect.get(key)) for key in ("x", "y", "width", "height"))
        for rect in root.iter(f"{SVG}rect")
    ]
    return found, width, height


names = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=12)


@given(st.dictionaries(names, st.dictionaries(names, st.floats(0, 1e15), max_size=7), max_size=5))
def test_bars_of_any_numbers_and_names_are_valid_and_within_the_frame(rows):
    """Markup in a name, zeros and huge numbers: the drawing parses and nothing leaves it."""
    picture = bars("State", rows)
    boxes, width, height = rectangles(picture)
    assert all(x + w <= width + 0.6 and y + h <= height for x, y, w, h in boxes)
    assert len(picture.words.splitlines()) == 1 + len(rows)


def test_a_bars_length_is_its_share_of_the_longest():
    """Half the bytes, half the length."""
    picture = bars("State", {"all": {"parameters": 100.0}, "half": {"parameters": 50.0}})
    widths = [box[2] for box in rectangles(picture)[0][1:]]  # the first is the legend's
    assert abs(widths[0] - 2 * widths[1]) < 0.2


def test_a_timeline_shows_every_event_where_it_happened_and_says_the_order():
    """Two stages: four boxes, a forward's a third of the step; words give order and idle share."""
    one = [Event(0, "F", 0, 0.0, 1.0), Event(0, "BW", 0, 2.0, 3.0)]
    two = [Event(1, "F", 0, 1.0, 1.5), Event(1, "BW", 0, 1.5, 2.0)]
    picture = timeline("Two stages", pipeline_times([one, two]))
    boxes, _, _ = rectangles(picture)
    assert len(boxes) == 2 + 4
    assert abs(boxes[2][2] * 3 - (860 - 130 - 10)) < 0.5
    assert "rank 0: F0 BW0; idle 33 % of the step" in picture.words
    assert picture.words in repr(picture) and "<figcaption>" in picture._repr_html_()


def test_the_sum_stands_behind_a_bar_and_the_title_above():
    """Reading a figure needs neither the words below nor a scale; letters are not used twice."""
    picture = bars("State", {"rank 0": {"parameters": 4, "peak": 12}})
    assert ">16 B</text>" in picture.svg
    assert picture._repr_html_().startswith("<figure><figcaption><strong>State</strong>")
    assert ">P</text>" in picture.svg and ">E</text>" in picture.svg
