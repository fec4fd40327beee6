"""Image generation by a provider, for the owner."""
