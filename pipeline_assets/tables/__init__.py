"""One module per table: columns, layout, build and checks."""
