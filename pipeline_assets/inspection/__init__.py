"""What an operator asks of published data; nothing is changed.

Contains: status, changes, window, verify, and a folder for each larger question.
Add here: another question of an operator.
Does not contain: charts (orchestration/health_page/), printing (cli/), changes of data (operations/).
"""
