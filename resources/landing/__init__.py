"""Landing: the folder or bucket where the vendor drops exports.

Contains: listing, opening, creating and deleting objects of a folder or bucket, and its errors.
Add here: another kind of store, or another guarded change of landing.
Does not contain: what an object is by its name (pipeline_assets/formats/), what is loaded (pipeline_assets/load/).
"""
