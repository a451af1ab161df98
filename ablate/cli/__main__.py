"""``python -m ablate.cli``, for where the command is not installed."""

from ablate.cli import main

if __name__ == "__main__":
    main()
