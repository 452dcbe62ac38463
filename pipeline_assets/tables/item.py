"""dimensions.item_snapshot and dimensions.item_validity: the items that events name, as they were on each day.

Contains: the dimension.
Add here: another property of items.
Does not contain: what all dimensions share (dimension.py), figures per item (active_item_events.py).
"""

from __future__ import annotations

from pipeline_assets.tables.dimension import dimension

ITEM = dimension("item", "The items that events name, as they were on each day.")
