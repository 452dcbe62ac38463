"""What an operator asks of published data; nothing is changed.

Contains: a module for each question (status, changes, explain, diff, verify, replay, window), the health report, metrics.
Add here: another question of an operator, another figure of the health page.
Does not contain: charts (orchestration/health_page.py), printing (cli/), changes of data (operations/).
"""
