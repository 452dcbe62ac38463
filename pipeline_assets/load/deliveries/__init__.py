"""The raw half of a load: which deliveries changed, reading them, judging batches, accepting event days.

Contains: plans of batches, reading, verdicts, losses, accepting and publishing raw.
Add here: another rule about a batch, or another reason to refuse one.
Does not contain: the grammar of names and lines (formats/), listing and opening objects (resources/landing/).
"""
