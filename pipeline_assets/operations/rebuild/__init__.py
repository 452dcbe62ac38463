"""Slices computed anew beside main, in a green branch: report, swap, undo.

Contains: choosing slices, building them, the report, the swap and its undo.
Add here: another condition of a swap.
Does not contain: the builders (load/build/), one publish (resources/publishing/).
"""
