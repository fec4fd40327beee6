"""``python -m gateway`` is ``squidbot``."""

from gateway.cli import main

if __name__ == "__main__":
    main()
