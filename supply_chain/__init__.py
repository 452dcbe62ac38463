"""What Tidemark is made of besides itself: packages and jars, their licences, holes in them, the list beside the wheel."""
