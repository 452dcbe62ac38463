"""Landing: the folder or bucket where the vendor drops exports."""
