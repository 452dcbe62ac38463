"""`python -m pipeline_assets.cli`: `tidemark`, wherever its script was installed."""

from pipeline_assets.cli import main

if __name__ == "__main__":
    main()
