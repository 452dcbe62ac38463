"""Published keys beside another table's, or those of a list."""
