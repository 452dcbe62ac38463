"""`tidemark`: the same jobs and questions from the shell."""


def main() -> None:
    """Entry point of the `tidemark` script."""
    from pipeline_assets.cli.app import app  # noqa: PLC0415 - who imports a part of the shell needs no command

    app()
