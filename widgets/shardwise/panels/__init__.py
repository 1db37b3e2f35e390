"""Panels: ipywidgets over one scenario, fast charts and fields that explain their errors."""
