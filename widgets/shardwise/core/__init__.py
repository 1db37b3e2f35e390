"""The pure core: values in, values out; the standard library and NumPy only."""
