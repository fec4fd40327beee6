def main() -> None:
    """Start the command line."""
