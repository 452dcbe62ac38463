"""The formats of delivered objects: compression, object names, lines and columns."""
