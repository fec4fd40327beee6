"""The client for providers that need litellm, which runs in a confined process of its own."""
