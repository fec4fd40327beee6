"""Pictures that a provider makes for the owner."""
