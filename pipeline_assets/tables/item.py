"""dimensions.item_snapshot and dimensions.item_validity: the items that events name, as they were on each day."""

from __future__ import annotations

from pipeline_assets.tables.dimension import dimension

ITEM = dimension("item", "The items that events name, as they were on each day.")
