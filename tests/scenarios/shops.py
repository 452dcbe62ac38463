"""dimensions.shop_snapshot and dimensions.shop_validity: a dimension of a team's own beside Tidemark's."""

from __future__ import annotations

from pipeline_assets.tables.dimension import dimension

SHOP = dimension("shop", "The shops that sell, as they were on each day.")
