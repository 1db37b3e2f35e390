"""The usual way, to compare with: sliders that replace the spec of five JupyterCharts."""

from __future__ import annotations

import altair as alt
import ipywidgets
from building_blocks import bars, rows

alt.JupyterChart.enable_offline(offline=True)


def chart(gpus: int) -> alt.Chart:
    """The same bars as a chart of Altair that holds its rows."""
    spec = {**bars(), "title": f"{gpus} GPUs", "width": 400}
    spec["data"] = {"values": rows(gpus)}
    spec["config"] = {"axis": {"labelColor": "#333"}}
    return alt.Chart.from_dict(spec)


def page(charts: int = 5) -> ipywidgets.Widget:
    """A slider and that many charts in the same grid."""
    slider = ipywidgets.IntSlider(value=8, min=1, max=1024, description="GPUs")
    shown = [
        alt.JupyterChart(chart(8), embed_options={"renderer": "svg", "actions": False})
        for _ in range(charts)
    ]

    def move(change: dict[str, int]) -> None:
        new = chart(change["new"])
        for one in shown:
            one.chart = new

    slider.observe(move, "value")
    grid = ipywidgets.GridBox(shown, layout={"grid_template_columns": "repeat(2, minmax(0, 1fr))"})
    return ipywidgets.VBox([slider, grid])
