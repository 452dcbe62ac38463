"""dimensions.item_snapshot and dimensions.item_validity: what events are about, as it was on each day.

Contains: the dimension.
Add here: what is known of items.
Does not contain: what all dimensions share (dimension.py), what is counted by items (active_item_events.py).
"""

from __future__ import annotations

from pipeline_assets.tables.dimension import dimension

ITEM = dimension("item", "The items that events name, as they were on each day.")
