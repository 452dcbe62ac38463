"""`python -m pipeline_assets.cli`: `tidemark` without its installed script."""

from pipeline_assets.cli import main

if __name__ == "__main__":
    main()
