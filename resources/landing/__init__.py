"""Landing: where the vendor drops exports."""
