"""dimensions.shop_snapshot and dimensions.shop_validity: a dimension of a team's own beside Tidemark's.

Contains: the dimension.
Add here: what is known of shops.
Does not contain: anything of Tidemark; the setting extra_dimensions names this module.
"""

from __future__ import annotations

from pipeline_assets.tables.dimension import dimension

SHOP = dimension("shop", "The shops that sell, as they were on each day.")
