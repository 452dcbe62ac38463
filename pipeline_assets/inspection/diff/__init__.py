"""What a slice would become, compared with what is published.

Contains: the comparison, samples of rows, its page.
Add here: another detail of a difference.
Does not contain: building the slice (load/build/).
"""
