"""The endpoint for programs that speak OpenAI's API: each request is a message of the person of its token."""
