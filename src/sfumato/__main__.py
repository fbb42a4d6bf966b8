"""The command `sfumato`, also as `python -m sfumato`."""


def main() -> None:
    """Run the command line; a plain install, which has none, says what to install."""
    try:
        from sfumato.cli import main as run
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"error: the command line needs {error.name}: python3 -m pip install 'sfumato[study]'"
        ) from None
    run()


if __name__ == "__main__":
    main()
